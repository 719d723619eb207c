"""Which files this process has mapped; which of their pages are in RAM, and which were written."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAPS, _PAGEMAP = Path("/proc/self/maps"), Path("/proc/self/pagemap")
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of an entry of `/proc/self/pagemap` (Documentation/admin-guide/mm/pagemap.rst of Linux)."""

_POPULATE_READ, _POPULATE_WRITE = 22, 23
_TRIED = 1000
_FIELDS = 6


@attrs.frozen
class Mapping:
    """Addresses `start` to `stop` show the bytes of `path` from `offset` on.

    A page that is written becomes the process's own, and the file stays as it is (`MAP_PRIVATE`).
    """

    start: int
    stop: int
    offset: int
    inode: int
    path: str


def mapped_files() -> list[Mapping]:
    """Return the files that are mapped now, privately, by rising address.

    None, if the system does not say.
    """
    try:
        lines = _MAPS.read_bytes().split(b"\n")
    except OSError:
        return []
    return [*_of_lines(lines)]


def _of_lines(lines: list[bytes]) -> Iterator[Mapping]:
    for line in lines:
        # Six fields, and spaces between them; a path may have any byte but a newline.
        fields = line.split(None, 5)
        if len(fields) == _FIELDS and fields[1].endswith(b"p") and fields[5].startswith(b"/"):
            start, stop = (int(each, 16) for each in fields[0].split(b"-"))
            yield Mapping(start, stop, int(fields[2], 16), int(fields[4]), os.fsdecode(fields[5]))


def is_as_in_file(start: int, stop: int) -> bool:
    """Return whether no page of a private mapping of a file, `start` to `stop`, was written.

    A page that was written is the process's own. The first and the last page must be in RAM. False
    if the system does not say.
    """
    first, last = start // mmap.PAGESIZE, -(-stop // mmap.PAGESIZE)
    try:
        with _PAGEMAP.open("rb", buffering=0) as file:
            entries = array("Q", os.pread(file.fileno(), 8 * (last - first), 8 * first))
    except OSError:
        return False
    if len(entries) != last - first or not entries[0] & entries[-1] & _OF_FILE:
        return False
    return not any(map(_is_own, set(entries)))


def _is_own(entry: int) -> bool:
    return bool(entry & _SWAPPED) or (bool(entry & _PRESENT) and not entry & _OF_FILE)


def cached_part(path: Path) -> float | None:
    """Return which part of a file is in RAM; None if that is unknown. See `part_in_ram`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as pages:
            held = ctypes.c_char.from_buffer(pages)
            try:
                return part_in_ram(ctypes.addressof(held), len(pages), tried=_TRIED)
            finally:
                del held  # pages in use cannot be unmapped
    except (OSError, ValueError, TypeError):  # an empty file, another system
        return None


def part_in_ram(address: int, size: int, *, tried: int) -> float | None:
    """Return which part of the pages of a mapping of a file is in RAM, by `tried` of them.

    Linux tells it to those who may write the file. To others all of it seems to be in RAM. None if
    the system does not say.
    """
    try:
        mincore = ctypes.CDLL(None).mincore
    except (AttributeError, TypeError):
        return None
    mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    first, last = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    pages = range(first, last, -(-(last - first) // tried))
    seen, found = ctypes.c_ubyte(), 0
    for page in pages:
        if mincore(page * mmap.PAGESIZE, mmap.PAGESIZE, ctypes.byref(seen)):
            return None
        found += seen.value & 1
    return found / len(pages)


def populate(address: int, size: int, *, write: bool = True) -> bool:
    """Have pages in RAM, as if each were written, or only read; return whether the system did it.

    Linux can from 5.14 on (`MADV_POPULATE_WRITE`, `MADV_POPULATE_READ`). What the pages hold stays.
    """
    if not sys.platform.startswith("linux"):
        return False
    madvise = ctypes.CDLL(None).madvise  # the one of `mmap` holds the GIL
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    advice = _POPULATE_WRITE if write else _POPULATE_READ
    refused: int = madvise(start, address + size - start, advice)
    return not refused
