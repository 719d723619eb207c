"""Locks and flags of open files. A lock ends when the file is closed or the process ends."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows: `lock` returns False
    fcntl = None  # type: ignore[assignment]

from .folder import close_read

if TYPE_CHECKING:
    from .folder import Folder

_LONGEST = 20
"""Most characters of a process id in a lock file."""


def lock(file: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock the open file with descriptor `file`; return False if the system has no such locks.

    If another process holds the lock, `wait=True` waits until the lock is free, and `wait=False`
    raises BlockingIOError.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    return True


def direct(file: int, *, wanted: bool) -> bool:
    """Have an open file pass by the page cache, or not; return whether it does now."""
    with suppress(OSError, AttributeError):  # this file system cannot, or no file of the system
        flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(file, fcntl.F_SETFL, flags | wanted * os.O_DIRECT)
        return wanted
    return False


class FolderLock:
    """The lock of a folder: a locked file that contains the id of the process.

    Raises BlockingIOError if another process holds the lock; its `strerror` is that process's id.
    """

    def __init__(self, folder: Folder, name: str = ".lock") -> None:
        self._folder, self._name = folder, name
        self._file: int | None = None
        self.exists = True
        """False if the system has no file locks."""
        try:
            self.check()
        except BaseException:
            self.close()  # nobody else can: there is no object
            raise

    def check(self) -> None:
        """Take the lock again if somebody removed or replaced the locked file."""
        self._folder.renew()
        while self._file is None or not self._folder.has(self._name, self._file):
            self.close()
            self._file = self._folder.open(self._name, os.O_RDWR | os.O_CREAT)
            try:
                self.exists = lock(self._file)
            except OSError as error:
                holder = os.read(self._file, _LONGEST).decode("ascii", "replace").strip()
                self.close()
                number = holder if holder.isdecimal() else "unknown"
                raise BlockingIOError(error.errno, number) from None
            with suppress(OSError):  # the process id is only for the error above
                os.ftruncate(self._file, 0)
                os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Release the lock; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            close_read(file)
