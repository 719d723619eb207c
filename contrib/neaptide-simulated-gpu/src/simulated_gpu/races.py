"""Races: what two streams, or a stream and the host, do to the same memory in no order."""

from __future__ import annotations

import importlib.util
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from simulated_gpu import _C

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINES = 5
_TRITON = importlib.util.find_spec("triton")
_INNER = tuple(
    str(Path(str(origin)).parent)
    for origin in (torch.__file__, __file__, _TRITON and _TRITON.origin)
    if origin
)


class RaceError(AssertionError):
    """Nothing orders two operations that use the same memory: no event, wait or synchronization."""


def races() -> list[str]:
    """Return the races since the last `reset`, each with its lines of the program."""
    return _C.races()


def taken(start: int = 0) -> list[str]:
    """Return the races after the first `start`, which are then no longer in `races()`."""
    return _C.take_races(start)


@contextmanager
def detect_races() -> Iterator[None]:
    """Raise RaceError at the end for the races in between, which are then no longer in `races()`.

    An exception of the block goes first.
    """
    before = len(races())
    yield
    if found := taken(before):
        raise RaceError("\n".join(found))


def _place_of_call() -> str:
    """Return the last lines of the program outside torch and this package."""
    frames = [one for one in traceback.extract_stack() if not one.filename.startswith(_INNER)]
    lines = [
        f"{Path(one.filename).name}:{one.lineno} {one.name}: {one.line}" for one in frames[-_LINES:]
    ]
    return "".join(f"\n    {line}" for line in lines)


_C.set_place_of_call(_place_of_call)
