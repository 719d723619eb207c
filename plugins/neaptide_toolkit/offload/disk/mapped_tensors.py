"""Reads tensors that are mapped parts of files past the page cache, into other memory.

What loads safetensors or `torch.load(mmap=True)` gives are tensors whose bytes are still on the
disk. Whoever copies one waits for each page; the page cache is allocated page by page, and is in
RAM besides the copy. In large pieces on several threads, past the cache (O_DIRECT), the bytes come
as fast as the disk sends them.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import torch

from neaptide_toolkit.machine.mappings import (
    cached_part,
    is_as_in_file,
    mapped_files,
    part_in_ram,
    populate,
)
from neaptide_toolkit.offload.host_memory import lies_in_slab
from neaptide_toolkit.offload.pages import Pages, mapped

from .bouncing import BounceBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DIRECT = getattr(os, "O_DIRECT", 0)
_PAGE = mmap.PAGESIZE
_THREADS = 8
_PIECE = 6 << 20
"""Bytes of one request. The buffers of all threads take 48 MiB."""
_COMPARED = 64
"""Bytes at each end of a tensor that are compared with the file's."""
_LEAST = 64 << 10
"""Bytes below which a tensor is copied as any other."""
_GAP = 1 << 20
"""The most bytes between two tensors that are read for nothing."""
_GROUP = 256 << 20
"""Bytes from which on memory takes no further tensor: it is freed when the last one is."""
_COLD = 0.5
"""The largest part of a tensor in the page cache at which to read past the cache is faster."""
_TRIED = 32


@attrs.frozen
class _MappedFile:
    """The file, opened to be read past the page cache, and through it."""

    direct: int
    plain: int


@attrs.frozen
class _FileSpan:
    """Bytes `start` to `stop` of a file."""

    file: _MappedFile
    start: int
    stop: int


class MappedTensors:
    """Copies tensors of which some are mapped parts of files.

    A tensor is read from its file if it has 64 KiB or more, if little of it is in the page cache,
    and if nobody has written it since it was mapped. What is mapped after this object is made is
    copied as any other tensor.

    Use it in a `with` statement, which ends all copies; it raises OSError if a file cannot be read.
    """

    def __init__(self) -> None:
        self._files = mapped_files()
        self._starts = [each.start for each in self._files]
        self._opened: dict[str, _MappedFile | None] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="neaptide-files")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="neaptide-pages")
        self._made: BounceBuffers | None = None
        self._begun: list[Future[None]] = []
        self._numbers = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for all copies; after an error, for those that are under way."""
        with self._numbers, self._pool, self._ahead:
            if kind is None:
                self.finish()
            else:
                self._pool.shutdown(cancel_futures=True)

    def copy(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """Begin to copy `source` to `place`, a contiguous tensor on the CPU of the same kind.

        `place` has its values after `finish`.
        """
        found = self._source(source) if place.is_contiguous() and _is_plain(source, place) else None
        if found is None:
            with torch.no_grad():
                place.copy_(source)
            return
        if self._made is None:
            self._made = BounceBuffers(_THREADS, _PIECE, torch.device("cpu"))
        flat, buffers = _bytes(place), self._made
        for start in range(found.start // _PAGE * _PAGE, found.stop, _PIECE):
            first, stop = max(start, found.start), min(start + _PIECE, found.stop)
            part = flat[first - found.start : stop - found.start]
            ready = self._populating(part) if lies_in_slab(place) else None
            self._begin(_bounced, buffers, ready, found.file.direct, start, first - start, part)

    def own(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the mapped ones of `tensors` memory of their own, with the same values.

        Two tensors of the same bytes share their memory as before.
        """
        found = [(each, self._source(each)) for each in tensors]
        owned = [(source, each) for each, source in found if source is not None]
        ordered = sorted(
            {source for source, _ in owned}, key=lambda one: (one.file.plain, one.start)
        )
        flats: dict[_FileSpan, torch.Tensor] = {}
        for group in _groups(ordered):
            flat, start = self._read(group), group[0].start
            flats |= {one: flat[one.start - start : one.stop - start] for one in group}
        self.finish()
        for source, tensor in owned:
            tensor.data = flats[source].view(tensor.dtype).view_as(tensor)

    def finish(self) -> None:
        """Wait for all copies; raise OSError if a file could not be read."""
        begun, self._begun = self._begun, []
        for each in begun:
            each.result()

    def _read(self, group: list[_FileSpan]) -> torch.Tensor:
        """Begin to read into new memory that is as far from a page's begin as the file's bytes."""
        start, stop = group[0].start, max(each.stop for each in group)
        begin = start // _PAGE * _PAGE
        size = stop - begin
        _, flat = mapped(-(-size // _PAGE) * _PAGE, Pages)
        for at in range(0, size, _PIECE):
            piece = flat[at : at + _PIECE]
            ready, needed = self._populating(piece), min(size - at, _PIECE)
            self._begin(_after, ready, _fill, group[0].file.direct, begin + at, piece, needed)
        return flat[start - begin : size]

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        self._begun.append(self._pool.submit(work, *arguments))

    def _populating(self, memory: torch.Tensor) -> Future[None]:
        """Begin to allocate pages, in one thread, in order: reads that allocate wait for it."""
        return self._ahead.submit(populate, memory.data_ptr(), memory.nbytes)

    def _source(self, tensor: torch.Tensor) -> _FileSpan | None:
        if not _is_mappable(tensor):
            return None
        begin = tensor.data_ptr()
        at = bisect_right(self._starts, begin) - 1
        if at < 0 or begin + tensor.nbytes > self._files[at].stop:
            return None
        place = self._files[at]
        start = begin - place.start + place.offset
        if start % tensor.element_size():  # no memory of this alignment can be viewed as the dtype
            return None
        cached = part_in_ram(begin, tensor.nbytes, tried=_TRIED)
        file = None if cached is None or cached > _COLD else self._open(place.path)
        if file is None:
            return None
        source = _FileSpan(file, start, start + tensor.nbytes)
        return source if _shows(source, tensor) else None

    def _open(self, path: str) -> _MappedFile | None:
        if path not in self._opened:
            numbers = _opened(Path(path))
            self._opened[path] = None if numbers is None else _MappedFile(*numbers)
            for number in numbers or ():
                self._numbers.callback(os.close, number)
        return self._opened[path]


def _groups(sources: Iterable[_FileSpan]) -> Iterator[list[_FileSpan]]:
    """Yield sources, in the order of a file, that one memory is to have: no gap is between them."""
    group: list[_FileSpan] = []
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
    if part is None or part > _COLD:
        return False
    numbers = _opened(path)
    for number in numbers or ():
        os.close(number)
    return numbers is not None


def _opened(path: Path) -> tuple[int, int] | None:
    if not _DIRECT:
        return None
    try:
        direct = os.open(path, os.O_RDONLY | _DIRECT)
    except OSError:  # a file system without O_DIRECT
        return None
    try:
        return direct, os.open(path, os.O_RDONLY)
    except BaseException:
        os.close(direct)
        raise


def _shows(source: _FileSpan, tensor: torch.Tensor) -> bool:
    """Return whether the tensor still has the bytes of the file.

    The memory may be another's since the list of mapped files was read: so its ends are compared.
    Then they are in RAM, too, and the system says of them that they are a file's.
    """
    flat, plain = _bytes(tensor), source.file.plain
    first = os.pread(plain, _COMPARED, source.start) == bytes(flat[:_COMPARED].numpy())
    last = os.pread(plain, _COMPARED, source.stop - _COMPARED) == bytes(flat[-_COMPARED:].numpy())
    begin = tensor.data_ptr()
    return first and last and is_as_in_file(begin, begin + tensor.nbytes)


def _is_plain(source: torch.Tensor, place: torch.Tensor) -> bool:
    same = source.shape == place.shape and source.dtype == place.dtype
    return same and place.device.type == "cpu"


def _is_mappable(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and tensor.is_contiguous() and tensor.nbytes >= _LEAST


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def _bounced(
    buffers: BounceBuffers,
    ready: Future[None] | None,
    number: int,
    offset: int,
    skipped: int,
    place: torch.Tensor,
) -> None:
    """Read into a buffer, and copy from there: memory and file differ in how they are aligned."""
    with buffers.one() as buffer:
        needed = skipped + place.nbytes
        _fill(number, offset, buffer.flat[: -(-needed // _PAGE) * _PAGE], needed)
        if ready is not None:
            ready.result()
        buffer.copy(place, buffer.flat[skipped:needed])


def _after(ready: Future[None], work: Callable[..., None], *arguments: Any) -> None:
    ready.result()
    work(*arguments)


def _fill(number: int, offset: int, memory: torch.Tensor, needed: int) -> None:
    """Read whole pages into `memory`, page-aligned; the file has at least `needed` bytes there."""
    left = memoryview(memory.numpy())  # type: ignore[arg-type]  # an array is a buffer
    done = 0
    while done < needed:
        read = os.preadv(number, [left[done:]], offset + done)
        if not read:
            msg = "the file is shorter than what is mapped"
            raise OSError(msg)
        done += read
