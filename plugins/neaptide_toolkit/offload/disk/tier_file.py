"""A file that holds the buffers of the disk tier.

The file has no name: nobody else can open it, and the system removes it when the process ends, in
whatever way it ends. So it is never a checkpoint, and nothing is left after a crash.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from contextlib import suppress
from errno import EISDIR, EOPNOTSUPP
from typing import TYPE_CHECKING
from weakref import finalize

from neaptide.text import called
from neaptide_toolkit.machine.file_systems import IN_MEMORY, kind_of

from .errors import disk_error
from .region import Region

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .transfers import Transfers

_NAMELESS = getattr(os, "O_TMPFILE", None)
_DIRECT = getattr(os, "O_DIRECT", 0)


class TierFile:
    """A private file in a directory, which grows by regions.

    Args:
        folder: an existing directory, on a disk.
        transfers: reads and writes the file.

    Raises:
        ValueError: the directory does not exist, or its files are kept in RAM.
        DiskError: the system refuses to make a file there.

    Attributes:
        direct: True if reads and writes go past the page cache (O_DIRECT). The file system may
            refuse that.
        size: bytes of all regions.
        moved_to_ram: why the disk refused a write, for each region that is in RAM since then.
    """

    def __init__(self, folder: Path, transfers: Transfers) -> None:
        if not folder.is_dir():
            msg = f"{str(folder)!r} is not a directory; name one on a disk"
            raise ValueError(msg)
        kind = kind_of(folder)
        if kind in IN_MEMORY:
            msg = f"{str(folder)!r} is a {kind}, which keeps files in RAM; name one on a disk"
            raise ValueError(msg)
        self.folder = folder
        self.transfers = transfers
        self.size = 0
        self.moved_to_ram: list[str] = []
        try:
            self.number = _opened(folder)
            finalize(self, os.close, self.number)
            self.direct = _made_direct(self.number)
        except OSError as error:
            raise disk_error(error, folder, "make a file") from error

    def __repr__(self) -> str:
        return called(self, str(self.folder), f"{self.size} bytes")

    def allocate(self, size: int) -> torch.Tensor:
        """Return a zeroed tensor, uint8 `[size]`, whose memory is this file.

        The room is allocated on the disk now, so a full disk is known now. The room of a tensor
        that nobody uses stays with the file.

        Raises:
            DiskError: the disk has no room, or the system refuses.
        """
        offset, whole = self.size, -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            os.posix_fallocate(self.number, offset, whole)
        except OSError as error:
            raise disk_error(error, self.folder, f"get {whole} bytes") from error
        self.size += whole
        return Region(self, offset, size).mapped()

    @property
    def written_bytes(self) -> int:
        """Return the bytes written so far past the page cache."""
        return self.transfers.written_in(self.number)

    def close(self) -> None:
        """End the threads that read and write the file. Its tensors stay."""
        self.transfers.close()


def _opened(folder: Path) -> int:
    if _NAMELESS is not None:
        try:
            return os.open(folder, _NAMELESS | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (EOPNOTSUPP, EISDIR):  # some file systems have no such files
                raise
    number, name = tempfile.mkstemp(dir=folder, prefix=".neaptide-")
    try:
        os.unlink(name)  # noqa: PTH108 - `folder` may be a relative path
    except BaseException:
        os.close(number)
        raise
    return number


def _made_direct(number: int) -> bool:
    """Ask for O_DIRECT; return whether the file system gives it."""
    with suppress(OSError):
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | _DIRECT)
        return bool(_DIRECT)
    return False
