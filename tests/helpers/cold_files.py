"""A file of which the page cache has nothing, mapped, and tensors of its parts."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
import torch

from neaptide_toolkit.offload.disk.file_spans import reads_directly

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
SIZE = 24 * MIB + 100


def cold(path: Path, flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    """Map the file, while the page cache has none of it."""
    with path.open("r+b") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pages = mmap.mmap(file.fileno(), 0, flags=flags)
    pages.madvise(mmap.MADV_RANDOM)  # what is touched does not bring its neighbours
    if not reads_directly(path):
        pytest.skip("this file system keeps its files in RAM, or has no O_DIRECT")
    return pages


def part(pages: mmap.mmap, start: int, stop: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return bytes `start` to `stop` as a tensor with a storage of its own."""
    return torch.frombuffer(
        pages, dtype=dtype, count=(stop - start) // dtype.itemsize, offset=start
    )


def truth(path: Path) -> torch.Tensor:
    """Return the bytes of the file, read past the page cache."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE)
    try:
        assert os.preadv(number, [room], 0) == SIZE
    finally:
        os.close(number)
    return torch.frombuffer(room, dtype=torch.uint8)[:SIZE]
