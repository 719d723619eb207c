"""Streams that may fail because of a closed pipe, a closed terminal or a full disk."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def open_missing() -> None:
    """Open the null device for each standard stream that is closed at the start (`>&-`).

    Otherwise the next opened file would get the stream's descriptor, and the output of libraries
    would be written to this file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open until the process ends


def discard(stream: IO[str]) -> None:
    """Redirect `stream`, on which a write has failed, to the null device.

    The stream's buffer still holds the text that was not written. Python would write this text
    again at exit and fail again. A stream without a descriptor, such as a `StringIO`, stays
    unchanged.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class Tolerant:
    """A wrapper that discards its stream after an error, so that a display cannot end a run."""

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
        """Flush the stream; if that fails, discard the stream."""
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)
