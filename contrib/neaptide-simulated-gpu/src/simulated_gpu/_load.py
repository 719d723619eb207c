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
    """Load the extension, then torch. Raises ImportError with the way out where it cannot be."""
    if "torch" in sys.modules:
        raise ImportError("torch is imported already: `import simulated_gpu` has to come before it")
    found = metadata.version("torch")
    if found.split("+")[0] not in TRIED:
        raise ImportError(f"simulated_gpu was tried with torch {', '.join(TRIED)}, not {found}")
    extension = importlib.util.find_spec("simulated_gpu._C")
    torch = importlib.util.find_spec("torch")
    if extension is None or extension.origin is None:
        raise ImportError("the extension of simulated_gpu is not built: install the package again")
    if (Path(str(torch.origin)).parent / "lib" / "libtorch_cuda.so").exists():
        raise ImportError(f"this torch ({found}) has CUDA: simulated_gpu wants a build for the CPU")
    ctypes.CDLL(extension.origin, ctypes.RTLD_GLOBAL)
