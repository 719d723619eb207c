"""Locks on open files: held until the file is closed, or the process is gone."""

from __future__ import annotations

from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and who needs a lock is told so
    fcntl = None  # type: ignore[assignment]


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> bool:
    """Lock `file`; return False where the system has no such locks.

    Raises BlockingIOError where another process holds it, unless `wait`ing for that one to end.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    return True
