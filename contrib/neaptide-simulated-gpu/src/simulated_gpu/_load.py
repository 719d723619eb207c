"""Loads the extension before torch, which looks for hooks of CUDA once, while it is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

TRIED = ("2.13.0",)
"""The versions of torch that this package was built and tested with."""


def library() -> None:
    """Load the extension. Raises ImportError with the way out where that cannot be."""
    if problem := _problem():
        raise ImportError(problem)
    ctypes.CDLL(_extension(), ctypes.RTLD_GLOBAL)


def _extension() -> str | None:
    spec = importlib.util.find_spec("simulated_gpu._C")
    return None if spec is None else spec.origin


def _problem() -> str | None:
    if "torch" in sys.modules:
        return "torch is imported already: `import simulated_gpu` has to come before it"
    found = metadata.version("torch")
    if found.split("+")[0] not in TRIED:
        return f"simulated_gpu was tried with torch {', '.join(TRIED)}, not with {found}"
    if _extension() is None:
        return "the extension of simulated_gpu is not built: install the package again"
    torch = importlib.util.find_spec("torch")
    if torch is not None and (Path(str(torch.origin)).parent / "lib/libtorch_cuda.so").exists():
        return f"this torch ({found}) has CUDA: simulated_gpu needs a build for the CPU"
    return None
