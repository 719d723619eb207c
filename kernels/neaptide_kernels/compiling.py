"""Decorators for functions that Numba compiles: no GIL, and floats divide as in torch."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

# With colorama, an error that Numba catches itself has a terminal's colours reset at exit, on a
# dumb terminal, too. So it is not found while Numba is imported.
_colorama = sys.modules.get("colorama")
sys.modules["colorama"] = None  # type: ignore[assignment]  # this is how Python is told
try:
    import numba.core.errors
finally:
    del sys.modules["colorama"]
    if _colorama is not None:
        sys.modules["colorama"] = _colorama

inner = partial(numba.njit, nogil=True, error_model="numpy")
"""For functions that other compiled functions of the same file call."""


def step(function: Any) -> Any:
    """For functions that `host_threads.run` calls. The result of compiling is kept on disk.

    Numba's cache notices changes of one file only. Therefore all compiled functions that a step
    calls are in the step's file.
    """
    try:
        return inner(cache=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        return inner(function)
