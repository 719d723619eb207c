"""Saves that clone what is in tier files: the file system lets the checkpoint share the blocks.

Every byte is read for the digest. None is written, until training writes to the tier again: then
the file system gives the tier other blocks, and the checkpoint keeps those that it has.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import attrs
import torch

from neaptide.checkpoint.files import WAY, at_once
from neaptide.checkpoint.safetensors_header import BLOCK

from .tier_file import regions

try:
    import fcntl
except ImportError:  # Windows, which has no tier files
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from neaptide.checkpoint.files import HashedFile, Writer

    from .tier_file import Region

_CLONE = 0x4020940D
"""FICLONERANGE of Linux."""


@contextmanager
def cloning() -> Iterator[Cloning]:
    """Within this context, `neaptide.checkpoint.save` clones; yield what counts the bytes.

    A save that another way writes, such as a thread later, is left to it.
    """
    found = Cloning()
    if WAY.get() is not at_once:
        yield found
        return
    token = WAY.set(found.way)
    try:
        yield found
    finally:
        WAY.reset(token)


class Cloning:
    """Where the regions on the disk are mapped, and how many bytes were cloned from them."""

    def __init__(self) -> None:
        found = sorted((one for one in regions() if not one.in_ram), key=lambda one: one.address)
        self._regions, self._starts = found, [one.address for one in found]
        self.bytes = 0

    def way(
        self, _: Path, context: AbstractContextManager[Writer], fill: Callable[[Writer], None]
    ) -> None:
        """Write a checkpoint; see `neaptide.checkpoint.files.WAY`."""
        with context as writer:
            fill(_ClonedFiles(self, writer))  # type: ignore[arg-type]  # what `fill` uses of it

    def source(self, data: ReadableBuffer) -> tuple[Region, int] | None:
        """Return the region that has `data`, and the place of `data` in its file."""
        view = memoryview(data)
        if view.readonly or not view.nbytes:
            return None
        address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
        place = bisect(self._starts, address) - 1
        if place < 0:
            return None
        region, within = self._regions[place], address - self._starts[place]
        inside = not region.in_ram and within + view.nbytes <= region.size
        return (region, region.offset + within) if inside else None

    def has_room(self, number: int) -> bool:
        """Return whether the next step can write every region to new blocks of this file system."""
        found = os.fstatvfs(number)
        return found.f_bavail * found.f_frsize > sum(one.size for one in self._regions)


@attrs.frozen
class _Range:
    """Bytes `start` to `stop` of a checkpoint's file, which are in `region` from `source` on."""

    start: int
    stop: int
    region: Region
    source: int


class _ClonedFile:
    """A file of a checkpoint. Its whole blocks that are in a region are cloned.

    `write` notes them in the thread that saves; `_put` clones them in the thread that writes.
    """

    def __init__(self, cloning: Cloning, file: HashedFile) -> None:
        self._cloning, self._file = cloning, file
        self._ranges: deque[_Range] = deque()
        self._can: bool | None = None
        file.put = self._put

    def write(self, data: bytes | memoryview) -> int:
        """Take all of `data`; return the number of bytes."""
        start, size = self._file.bytes, memoryview(data).nbytes // BLOCK * BLOCK
        found = self._cloning.source(data) if size and start % BLOCK == 0 else None
        if found is not None and found[1] % BLOCK == 0:
            self._ranges.append(_Range(start, start + size, *found))
        return self._file.write(data)

    def _put(self, number: int, data: ReadableBuffer, /) -> int:
        """Clone or write the first bytes of `data`; return how many."""
        piece, at = memoryview(data), os.lseek(number, 0, os.SEEK_CUR)
        while self._ranges and self._ranges[0].stop <= at:
            self._ranges.popleft()
        first = self._ranges[0] if self._ranges else None
        if first is None or at < first.start:
            return os.write(number, piece if first is None else piece[: first.start - at])
        count = min(first.stop - at, len(piece))
        if not self._cloned(number, first, at, count):
            return os.write(number, piece[:count])
        os.lseek(number, count, os.SEEK_CUR)
        self._cloning.bytes += count
        return count

    def _cloned(self, number: int, one: _Range, at: int, count: int) -> bool:
        """Clone `count` bytes to `at`; return False if they have to be written."""
        if self._can is None:
            self._can = self._cloning.has_room(number)
        if self._can and count % BLOCK == 0:
            there = one.region.file.number, one.source + at - one.start
            try:
                fcntl.ioctl(number, _CLONE, struct.pack("=qQQQ", *there, count, at))
            except OSError:  # another file system, or one without clones: writing tells the rest
                self._can = False
            else:
                return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)  # type: ignore[arg-type]  # as Python gives it


class _ClonedFiles:
    """Takes the place of a `Writer` for what fills a checkpoint."""

    def __init__(self, cloning: Cloning, writer: Writer) -> None:
        self._cloning, self._writer = cloning, writer

    def file(self, name: str) -> _ClonedFile:
        """Create a file; see `Writer.file`."""
        return _ClonedFile(self._cloning, self._writer.file(name))

    @property
    def bytes(self) -> int:
        """The number of bytes of all files so far."""
        return self._writer.bytes
