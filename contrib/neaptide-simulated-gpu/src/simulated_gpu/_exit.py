"""Ends autograd's threads before Python ends."""

from __future__ import annotations

import atexit
import time
from pathlib import Path

from simulated_gpu import _C

_LIMIT = 5.0
_PAUSE = 0.001


def _autograd_threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(task.read_text("ascii").strip())
        except OSError:  # it has ended
            continue
    return [name for name in names if name.startswith("pt_autograd_")]


def _stop() -> None:
    _C.record_memory(False)
    _C.stop_autograd()
    deadline = time.monotonic() + _LIMIT
    while _autograd_threads() and time.monotonic() < deadline:
        time.sleep(_PAUSE)  # they need the GIL once more


def install() -> None:
    """Do so when the process exits."""
    atexit.register(_stop)
