"""Keeps what a process prints and logs in a file of its own."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neaptide.io.logging import json_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Inside the context, append what this process prints, and its events as JSON, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = [os.dup(stream) for stream in (1, 2)]
    try:
        with path.open("ab", buffering=0) as file:
            _flushed()
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
            with json_lines():
                yield
    finally:
        _flushed()
        for stream, place in enumerate(before, 1):
            os.dup2(place, stream)
            os.close(place)


def _flushed() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
