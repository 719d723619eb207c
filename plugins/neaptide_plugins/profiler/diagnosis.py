"""Findings for `neaptide doctor` about NVML: the Python binding, the driver, and each GPU."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

from neaptide import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALL = 'pip install "neaptide[nvml]"'
_GIB = 1 << 30


def findings() -> Iterator[Finding]:
    """Yield findings about NVML. An error of NVML is also a finding."""
    if _version("pynvml") is not None:
        detail = "the distribution pynvml is deprecated: nvidia-ml-py provides the same module"
        advice = f"pip uninstall pynvml && {_INSTALL}"
        yield Finding("warning", "NVML", detail, advice)
    try:
        import pynvml  # noqa: PLC0415 - optional: only this plugin uses it
    except ImportError:
        detail = "not installed: GPU memory of other processes is not measured"
        yield Finding("note", "NVML", detail, _INSTALL)
        return
    binding = f"nvidia-ml-py {_version('nvidia-ml-py') or 'of unknown version'}"
    try:
        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - NVML has an error class for each return code
        yield Finding("note", "NVML", f"{binding}, but no driver: {_reason(error)}")
        return
    try:
        yield Finding("ok", "NVML", f"{binding}, driver {_driver(pynvml)}")
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield Finding("ok", f"GPU {index}", _device(pynvml, index))
    except Exception as error:  # noqa: BLE001 - as above
        yield Finding("warning", "NVML", f"the driver failed: {_reason(error)}", "nvidia-smi")
    finally:
        with suppress(Exception):  # all findings are made
            pynvml.nvmlShutdown()


def _driver(nvml: Any) -> str:
    number = int(nvml.nvmlSystemGetCudaDriverVersion())
    cuda = f"{number // 1000}.{number % 1000 // 10}"
    return f"{_text(nvml.nvmlSystemGetDriverVersion())} (up to CUDA {cuda})"


def _device(nvml: Any, index: int) -> str:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return (
        f"{_text(nvml.nvmlDeviceGetName(handle))}, {memory.total / _GIB:.1f} GiB, "
        f"{memory.free / _GIB:.1f} GiB free, compute capability {major}.{minor}"
    )


def _text(answer: str | bytes) -> str:
    return (
        answer.decode() if isinstance(answer, bytes) else answer
    )  # bindings before 12 return bytes


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
