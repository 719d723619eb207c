"""Parts of files on a disk that mapped tensors show, and how they are opened."""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from errno import EINVAL, EOPNOTSUPP
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide_toolkit.machine.mappings import cached_part, is_as_in_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

COLD = 0.5
"""The largest part in the page cache at which to read past the cache is faster."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_COMPARED = 64
"""Bytes at each end of a tensor that are compared with the file's."""
_GAP = 1 << 20
"""The most bytes between two tensors that are read for nothing."""
_GROUP = 256 << 20
"""Bytes from which on memory takes no further tensor: it is freed when the last one is."""


@attrs.frozen
class OpenedFile:
    """The file, opened to be read past the page cache, and through it."""

    direct: int
    plain: int

    def close(self) -> None:
        """Close both."""
        os.close(self.direct)
        os.close(self.plain)


@attrs.frozen
class FileSpan:
    """Bytes `start` to `stop` of a file."""

    file: OpenedFile
    start: int
    stop: int


def groups(sources: Iterable[FileSpan]) -> Iterator[list[FileSpan]]:
    """Yield sources, in the order of a file, that one memory is to have: no gap is between them."""
    group: list[FileSpan] = []
    stop = 0
    for each in sources:
        near = group and each.file == group[0].file and each.start < stop + _GAP
        if near and stop - group[0].start < _GROUP:
            group.append(each)
        else:
            if group:
                yield group
            group, stop = [each], 0
        stop = max(stop, each.stop)
    if group:
        yield group


def reads_directly(path: Path) -> bool:
    """Return whether `MappedTensors` reads most tensors of this file past the page cache."""
    part = cached_part(path)
    if part is None or part > COLD:
        return False
    file = opened(path, path.stat().st_ino)
    if file is not None:
        file.close()
    return file is not None


def opened(path: Path, inode: int) -> OpenedFile | None:
    """Open a file twice, past the page cache and through it; None if that way is not there."""
    if not _DIRECT:
        return None
    with ExitStack() as stack:
        numbers = []
        for flag in (_DIRECT, 0):
            try:
                number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag)
            except OSError:  # a file system without O_DIRECT, or a file that is gone
                return None
            stack.callback(os.close, number)
            numbers.append(number)
            if os.fstat(number).st_ino != inode:  # another file has the name now
                return None
        try:  # some file systems take the flag, and refuse the read
            os.preadv(numbers[0], [mmap.mmap(-1, mmap.PAGESIZE)], 0)
        except OSError as error:
            if error.errno in (EINVAL, EOPNOTSUPP):
                return None
            raise OSError(error.errno, error.strerror, str(path)) from error
        stack.pop_all()
        return OpenedFile(*numbers)


def shows(source: FileSpan, tensor: torch.Tensor) -> bool:
    """Return whether the tensor still has the bytes of the file.

    The memory may be another's since the list of mapped files was read: so its ends are compared.
    Then they are in RAM, too, and the system says of them that they are a file's.
    """
    flat, plain = bytes_of(tensor), source.file.plain
    first = os.pread(plain, _COMPARED, source.start) == bytes(flat[:_COMPARED].numpy())
    last = os.pread(plain, _COMPARED, source.stop - _COMPARED) == bytes(flat[-_COMPARED:].numpy())
    begin = tensor.data_ptr()
    return first and last and is_as_in_file(begin, begin + tensor.nbytes)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, uint8 `[n]`, in the same memory."""
    return tensor.detach().view(-1).view(torch.uint8)
