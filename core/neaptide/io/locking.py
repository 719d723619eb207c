"""Locks on open files. A lock ends when the file is closed or the process ends."""

from __future__ import annotations

from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: `lock` returns False
    fcntl = None  # type: ignore[assignment]


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> bool:
    """Lock `file`; return False if the system has no such locks.

    If another process holds the lock, `wait=True` waits until the lock is free, and `wait=False`
    raises BlockingIOError.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    return True
