"""The error of a disk that does not do what it is asked."""

from __future__ import annotations

import os
from errno import EACCES, EDQUOT, EFBIG, EMFILE, ENFILE, ENOSPC, EPERM, EROFS
from typing import TYPE_CHECKING

from neaptide import NeaptideError
from neaptide.text import shorten

if TYPE_CHECKING:
    from pathlib import Path

RESUME = "check the disk, then resume from the last checkpoint"
_WAYS_OUT = {
    **dict.fromkeys((ENOSPC, EDQUOT, EFBIG), "free space there, or name another directory"),
    **dict.fromkeys((EACCES, EPERM, EROFS), "permit writing there, or name another directory"),
    **dict.fromkeys((EMFILE, ENFILE), "raise ulimit -n"),
}


class DiskError(NeaptideError):
    """A file of the disk tier cannot be made, read or written."""


def failed(error: OSError, folder: Path, what: str) -> str:
    """Return what failed, where, and why."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot {what} in {shorten(str(folder), 300)}: {reason}"


def disk_error(error: OSError, folder: Path, what: str, way_out: str = RESUME) -> DiskError:
    """Return the error of one line, with `way_out` unless the reason has another one."""
    found = _WAYS_OUT.get(error.errno or 0, way_out)
    return DiskError(f"{failed(error, folder, what)}; {found}")
