"""Streams that may fail: a closed pipe or terminal, a full disk."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def open_missing() -> None:
    """Open the null device for each standard stream that the process was started without (`>&-`).

    Otherwise the next file that is opened would get the descriptor, and libraries print into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open until the process ends


def discard(stream: IO[str]) -> None:
    """Redirect a stream that failed to the null device.

    Its buffer still holds the text that it could not write; without this, Python's exit would fail
    on that text again. A stream without a descriptor (a notebook's, a `StringIO`) stays unchanged.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class Tolerant:
    """A stream that is discarded when it fails, so that a failing display never ends a run."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`; if that fails, discard the stream."""
        try:
            return self._stream.write(text)
        except OSError:
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush; if that fails, discard the stream."""
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)
