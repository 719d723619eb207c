"""A file to which whole lines are appended. If the file is moved or deleted, it is reopened."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO

    from neaptide.io.folder import Folder


LONGEST_LINE = 1 << 20
"""Largest size of a line in bytes, including the line feed. Readers may skip longer lines."""


class AppendedFile:
    """Appends lines to the file `name` of a folder, each with one unbuffered write.

    If the process is killed, no appended line is lost. If a full disk cuts a line short, the part
    on the disk is removed. If the file was moved, deleted or replaced, `name` is opened again.
    """

    def __init__(self, folder: Folder, name: str, header: str = "") -> None:
        self._folder, self._name = folder, name
        self._header = header
        self._file: FileIO | None = None

    def append(self, line: str) -> None:
        """Append `line`; if the file is empty, first write the header. OSError if a write fails."""
        file = self._opened()
        before = os.fstat(file.fileno()).st_size
        text = f"{line}\n" if before or not self._header else f"{self._header}\n{line}\n"
        data = text.encode()
        try:
            written = file.write(data)
        except OSError:
            with suppress(OSError):
                self.close()
            raise
        if written != len(data):
            os.ftruncate(file.fileno(), before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file. The next `append` opens the file again.

        OSError if earlier lines were not written after all: a network disk may say so only now.
        """
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> FileIO:
        if self._file is not None and not self._folder.has(self._name, self._file.fileno()):
            self.close()
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.fdopen(self._folder.open(self._name, flags), "ab", buffering=0)
        return self._file
