"""Files that hold the buffers of the disk tier, and their regions, each mapped as a tensor.

A file has no name: nobody else can open it, and the system removes it when the process ends, in
whatever way it ends. So it is never a checkpoint, and nothing is left after a crash.

Whoever uses a region's tensor reads and writes the file through the page cache. `copying.copy` goes
past the page cache. The system keeps both ways in agreement as long as they are not used at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from errno import EISDIR, EOPNOTSUPP
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

import torch

from neaptide.io.locking import direct
from neaptide.text import called
from neaptide_toolkit.machine.facts import memory
from neaptide_toolkit.machine.file_systems import IN_MEMORY, kind_of

from .errors import disk_error

if TYPE_CHECKING:
    from pathlib import Path

    from .transfers import Transfers

_NAMELESS = getattr(os, "O_TMPFILE", None)
_FIXED = 0x10
"""MAP_FIXED of Linux: replace the mapping that is there."""
_ELSEWHERE = "check the disk, or name another directory"
_LEFT = 256 << 20
"""Bytes of RAM that stay free when a region moves to RAM."""


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
        self.folder = folder
        self.transfers = transfers
        self.size = 0
        self.moved_to_ram: list[str] = []
        try:
            _check(folder)
            self.number = _opened(folder)
            finalize(self, os.close, self.number)
            self.direct = direct(self.number, wanted=True)
        except OSError as error:
            raise disk_error(error, folder, "make a file", _ELSEWHERE) from error

    def __repr__(self) -> str:
        return called(self, str(self.folder), f"{self.size} bytes")

    def allocate(self, size: int) -> torch.Tensor:
        """Return a zeroed tensor, uint8 `[size]`, whose memory is this file.

        The room is allocated on the disk now, so a full disk is known now. The room of a tensor
        that nobody uses stays with the file.

        Raises:
            DiskError: the disk has no room, or the system refuses.
        """
        offset, whole = self.size, _whole_pages(size)
        try:
            os.posix_fallocate(self.number, offset, whole)
        except OSError as error:
            raise disk_error(error, self.folder, f"get {whole} bytes", _ELSEWHERE) from error
        self.size += whole
        try:
            return Region(self, offset, size).mapped()
        except OSError as error:
            raise disk_error(error, self.folder, f"map {whole} bytes", _ELSEWHERE) from error

    @property
    def written_bytes(self) -> int:
        """Return the bytes written so far past the page cache."""
        return self.transfers.written_in(self.number)

    def close(self) -> None:
        """End the threads that read and write the file. Its tensors stay."""
        self.transfers.close()


def _check(folder: Path) -> None:
    if not folder.is_dir():
        msg = f"{str(folder)!r} is not a directory; name one on a disk"
        raise ValueError(msg)
    kind = kind_of(folder)
    if kind in IN_MEMORY:
        msg = f"{str(folder)!r} is a {kind}, which keeps files in RAM; name one on a disk"
        raise ValueError(msg)


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


class _FileMapping(mmap.mmap):
    """Pages of a file, which keep their region known while a tensor uses them."""

    region: Region


class Region:
    """The place of a tensor in a tier file.

    Attributes:
        file: the file.
        offset: of the first byte, a multiple of the page size.
        size: in bytes.
        address: where the file is mapped.
        in_ram: True if the disk refused a write, and the tensor's memory has moved to RAM.
    """

    def __init__(self, file: TierFile, offset: int, size: int) -> None:
        self.file, self.offset, self.size = file, offset, size
        self.address = 0
        self.in_ram = False

    def __repr__(self) -> str:
        return called(self, f"{self.size} bytes at {self.offset}")

    def mapped(self) -> torch.Tensor:
        """Return the bytes of the region, uint8 `[size]`, mapped from the file."""
        whole = _whole_pages(self.size)
        pages = _FileMapping(self.file.number, whole, flags=mmap.MAP_SHARED, offset=self.offset)
        pages.region = self  # the tensor has no reference to this object, and must not have one
        flat = torch.frombuffer(pages, dtype=torch.uint8)[: self.size]
        self.address = flat.data_ptr()
        _known[self.address] = self
        return flat

    def move_to_ram(self) -> bool:
        """Replace the mapping by zeroed pages of RAM at the same address, if there is room.

        Every tensor that views the region has its memory in RAM then. Return whether it moved.
        """
        whole, room = _whole_pages(self.size), memory().room
        if room is not None and room < whole + _LEFT:
            return False
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
        there = mmap.PROT_READ | mmap.PROT_WRITE
        self.in_ram = library.mmap(self.address, whole, there, flags, -1, 0) == self.address
        return self.in_ram


_known: WeakValueDictionary[int, Region] = WeakValueDictionary()


def region_of(tensor: torch.Tensor) -> Region | None:
    """Return the region on the disk whose bytes are all those of `tensor`, or None."""
    if not _known or tensor.device.type != "cpu":
        return None
    region = _known.get(tensor.data_ptr())
    if region is None or region.in_ram or tensor.nbytes != region.size:
        return None
    return region


def regions() -> list[Region]:
    """Return all regions that a tensor uses."""
    return list(_known.values())


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
