"""The error of a disk that does not do what it is asked."""

from __future__ import annotations

import os
from errno import EDQUOT, EFBIG, ENOSPC
from typing import TYPE_CHECKING

from neaptide import NeaptideError

if TYPE_CHECKING:
    from pathlib import Path

_FULL = {ENOSPC, EDQUOT, EFBIG}


class DiskError(NeaptideError):
    """A file of the disk tier cannot be made, read or written."""


def disk_error(error: OSError, folder: Path, what: str) -> DiskError:
    """Return the error of one line: what failed, where, why, and the way out."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    way_out = (
        "free space there, or name another directory"
        if error.errno in _FULL
        else "check the disk, then resume from the last checkpoint"
    )
    return DiskError(f"cannot {what} in {folder}: {reason}; {way_out}")
