"""Streams that may fail: a reader that has gone, a full disk, a terminal that was closed."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def open_missing() -> None:
    """Give the process the standard streams it was started without (`>&-`): nothing, to nowhere.

    The descriptors are taken as well, or the next file that is opened would be what libraries
    print to.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for the process's whole life


def discard(stream: IO[str]) -> None:
    """Let everything written to `stream` from here on go nowhere.

    For a stream that failed: what it could not write is still in its buffer, and would fail once
    more when Python exits. One without a descriptor (a notebook's, a `StringIO`) is left as it is.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class Tolerant:
    """A stream that is given up when it fails, so that what watches a run never ends it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or discard from here on."""
        try:
            return self._stream.write(text)
        except OSError:
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush, or discard from here on."""
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)
