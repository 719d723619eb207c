"""A part of a tier file that is mapped as a tensor.

Whoever uses the tensor reads and writes the file through the page cache. `copying.copy` goes past
the page cache. The system keeps both ways in agreement as long as they are not used at once.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from neaptide.text import called
from neaptide_toolkit.machine.facts import memory

if TYPE_CHECKING:
    from .tier_file import TierFile

_FIXED = 0x10
"""MAP_FIXED of Linux: replace the mapping that is there."""
_LEFT = 256 << 20
"""Bytes of RAM that stay free when a region moves to RAM."""


class _Pages(mmap.mmap):
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
        pages = _Pages(self.file.number, whole, flags=mmap.MAP_SHARED, offset=self.offset)
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
