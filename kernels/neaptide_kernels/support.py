"""Report whether Triton can run a call on this machine, or the reason why not.

Triton is imported at first use.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import Query

OLDEST = (3, 6)
_LEAST_CAPABILITY = (8, 0)


@cache
def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def triton_version() -> str | None:
    """Return the version of the installed Triton, or None."""
    found = map(installed, ("triton", "pytorch-triton", "triton-windows"))
    return next(filter(None, found), None)


def no_triton(query: Query) -> str:
    """Return why Triton cannot run the call `query`; an empty text if Triton can run it."""
    return no_triton_on(query.device, query.capability)


def no_triton_on(device: str, capability: tuple[int, int] | None) -> str:
    """Return why Triton cannot run on a kind of device; an empty text if Triton can run.

    Args:
        device: a kind of device, such as `"cpu"` or `"cuda"`.
        capability: compute capability of the GPU, or None.
    """
    installed = triton_version()
    if installed is None:
        return 'Triton is not installed: pip install "neaptide[triton]"'
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f'Triton {installed} is older than {oldest}: pip install -U "neaptide[triton]"'
    if device == "cuda":
        major, minor = capability or (0, 0)
        if (major, minor) < _LEAST_CAPABILITY:
            return f"the GPU's capability {major}.{minor} is below 8.0"
        return ""
    if device == "cpu":
        return "" if _interprets() else "Triton runs on a GPU, not on the CPU"
    return f"Neaptide has no Triton kernels for {device} tensors"


def _interprets() -> bool:
    import triton  # noqa: PLC0415 - only where it is installed

    return bool(triton.knobs.runtime.interpret)
