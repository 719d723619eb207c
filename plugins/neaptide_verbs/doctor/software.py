"""Python, torch, Triton, extras and relevant environment variables."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import attrs

from neaptide.api.records import Finding
from neaptide.errors import described, suggest
from neaptide.hooks.registry import DISABLED_VARIABLE, disabled_strangers
from neaptide_toolkit.machine.facts import installed, torch_facts

from .requirements import is_older, missing_extras, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide_toolkit.machine.facts import Torch

T = TypeVar("T")

_OURS = "NEAPTIDE_"
_CONFIG = "NEAPTIDE__"
_DEVELOPERS_EXTRAS = frozenset({"test"})
_COMPILERS = ("cc", "gcc", "clang")
_TRIAL_SECONDS = 60
_SHOWN = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
)
_COSTLY = {
    "CUDA_LAUNCH_BLOCKING": "every kernel waits for the previous one: for debugging only",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver: for debugging only",
}


@attrs.frozen
class Imported:
    """The result of importing torch and the part of Neaptide that needs torch."""

    torch: Torch | None
    seconds: float
    torch_problem: str | None
    core_problem: str | None

    @property
    def works(self) -> bool:
        """Return whether both imports succeeded."""
        return self.torch_problem is None and self.core_problem is None


def import_all() -> Imported:
    """Import torch and query its properties, then import the core. Every error is recorded."""
    start = time.perf_counter()
    torch, torch_problem = _tried(torch_facts)
    seconds = time.perf_counter() - start
    core_problem = None
    if torch is not None:
        _, core_problem = _tried(lambda: import_module("neaptide.run.trainer"))
    return Imported(torch, seconds, torch_problem, core_problem)


def _tried(action: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return action(), None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a damaged install may raise anything
        return None, described(error)


def basics(imported: Imported) -> Iterator[Finding]:
    """Yield the findings on Python, Neaptide and torch."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    python = f"{platform.python_version()} ({platform.python_implementation()}) on {system}"
    yield Finding("ok", "Python", python)
    yield _neaptide(imported.core_problem)
    needed = pinned("neaptide", "torch")
    wanted = quote(needed.text if needed else "torch")
    if imported.torch is None:
        there = f"{installed('torch')} is installed but " if installed("torch") else ""
        advice = f"pip install --force-reinstall {wanted}"
        yield Finding(
            "error", "torch", f"{there}cannot be imported: {imported.torch_problem}", advice
        )
        return
    found = imported.torch
    detail = f"{found.version} built for {found.build}, imported in {imported.seconds:.1f} s"
    if needed and is_older(found.version, needed.versions):
        detail = f"{detail}; Neaptide needs {needed.versions}"
        yield Finding("error", "torch", detail, f"pip install --upgrade {wanted}")
    else:
        yield Finding("ok", "torch", detail)


def _neaptide(problem: str | None) -> Finding:
    version = installed("neaptide")
    if problem is not None:
        detail = f"{version}: its training modules cannot be imported: {problem}"
        missing = not Path("/proc/self").exists()  # psutil reads the process's memory from /proc
        advice = "mount -t proc proc /proc" if missing else "pip install --force-reinstall neaptide"
        return Finding("error", "Neaptide", detail, advice)
    if version is None:
        return Finding("warning", "Neaptide", "its metadata is missing", "pip install neaptide")
    return Finding("ok", "Neaptide", version)


def triton(torch: Torch) -> Finding:
    """Return the finding on Triton.

    Triton's version is compared with the version that torch requires, and Triton is imported as a
    test.
    """
    pin = pinned("torch", "triton")
    name = pin.name if pin else "triton"
    version = installed(name)
    install = f"pip install {quote(pin.text if pin else name)}"
    if version is None:
        if not torch.gpus:
            return Finding("ok", "Triton", "not installed, and not needed without a GPU")
        return Finding("warning", "Triton", "not installed: kernels fall back to torch", install)
    problem = _cannot_import("triton")
    if problem is not None:
        return Finding("warning", "Triton", f"{version} cannot be imported: {problem}", install)
    if pin and pin.versions.startswith("==") and pin.versions[2:] != version.partition("+")[0]:
        detail = f"{version}, but torch {torch.version} pins {pin.versions[2:]}"
        return Finding("warning", "Triton", detail, install)
    if torch.gpus and "CC" not in os.environ and not any(map(shutil.which, _COMPILERS)):
        detail = f"{version}, but there is no C compiler, which its kernels need"
        return Finding("warning", "Triton", detail, "apt-get install gcc")
    return Finding("ok", "Triton", f"{version}, {'as torch pins it' if pin else 'imports'}")


def _cannot_import(module: str) -> str | None:
    # In a separate process, because Triton's native library may crash the process.
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(  # noqa: S603 - this Python, a constant module
            command, capture_output=True, text=True, check=False, timeout=_TRIAL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return last if done.returncode else None


def extras() -> Iterator[Finding]:
    """Yield the findings on the optional extras of Neaptide's own distribution."""
    missing = missing_extras("neaptide", _DEVELOPERS_EXTRAS)
    for extra, names in missing.items():
        advice = f'pip install "neaptide[{extra}]"'
        yield Finding("note", extra, f"not installed: {', '.join(names)}", advice)
    if not missing:
        yield Finding("ok", "extras", "all are installed")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect a run's results or cost."""
    ours = sorted(name for name in environ if name.startswith(_OURS))
    return {name: environ[name] for name in (*_SHOWN, *ours) if name in environ}


def environment(environ: Mapping[str, str], torch: Torch | None) -> Iterator[Finding]:
    """Yield the findings on the environment variables."""
    shown = variables(environ)
    for name, value in shown.items():
        yield _variable(name, value)
    allocator = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    if torch and torch.gpus and not allocator & shown.keys():
        detail = "not set: free memory may be too fragmented for a large tensor"
        advice = "export PYTORCH_ALLOC_CONF=expandable_segments:True"
        yield Finding("note", "PYTORCH_ALLOC_CONF", detail, advice)
    if not shown:
        yield Finding("ok", "variables", "no relevant variable is set")


def _variable(name: str, value: str) -> Finding:
    if name in _COSTLY and value not in ("", "0"):
        return Finding("warning", name, f"{value}: {_COSTLY[name]}", f"unset {name}")
    if name == "CUDA_VISIBLE_DEVICES" and value in ("", "-1"):
        return Finding("note", name, f"{value!r} hides every GPU", f"unset {name}")
    if name == DISABLED_VARIABLE:
        return _disabled(value)
    if name.startswith(_OURS) and not name.startswith(_CONFIG):
        detail = f"no such variable{suggest(name, [DISABLED_VARIABLE])}"
        return Finding("warning", name, detail, f"unset {name}")
    return Finding("ok", name, value)


def _disabled(value: str) -> Finding:
    wrong = disabled_strangers()
    if not wrong:
        return Finding("ok", DISABLED_VARIABLE, value)
    return Finding("warning", DISABLED_VARIABLE, ", ".join(wrong), "neaptide plugins list")
