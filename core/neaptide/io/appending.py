"""A file that grows by whole lines: kept open, never left with half a line, found again if gone."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path


LONGEST_LINE = 1 << 20
"""Bytes of a line with its end. Whoever reads a run may leave longer ones out."""


class AppendedFile:
    """Appends lines to the file at `path`, each with one write that nothing buffers.

    A kill loses no line, and what a full disk cuts short is taken back. When the file is no longer
    at its path (the directory was removed, or another file put in its place) it is opened anew.
    """

    def __init__(self, path: Path, header: str = "") -> None:
        self.path = path
        self._header = header
        self._file: FileIO | None = None

    def append(self, line: str) -> None:
        """Write `line`, below the header in an empty file; OSError where that cannot be done."""
        file = self._opened()
        before = os.fstat(file.fileno()).st_size
        text = f"{line}\n" if before or not self._header else f"{self._header}\n{line}\n"
        data = text.encode()
        try:
            written = file.write(data)
        except OSError:
            self.close()
            raise
        if written != len(data):
            os.ftruncate(file.fileno(), before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> FileIO:
        if self._file is not None and not self._is_at_its_path(self._file):
            self.close()
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def _is_at_its_path(self, file: FileIO) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(file.fileno()))
        except OSError:
            return False
