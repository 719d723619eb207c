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
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from neaptide_toolkit.machine.mappings import mapped_files, part_in_ram, populate
from neaptide_toolkit.offload.host_memory import lies_in_slab
from neaptide_toolkit.offload.pages import Pages, mapped
from neaptide_toolkit.offload.storages import users

from .bouncing import BounceBuffers
from .file_spans import COLD, FileSpan, OpenedFile, bytes_of, groups, opened, shows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neaptide_toolkit.machine.mappings import Mapping

_PAGE = mmap.PAGESIZE
_THREADS = 8
_PIECE = 6 << 20
"""Bytes of one request. The buffers of all threads take 48 MiB."""
_LEAST = 64 << 10
"""Bytes below which a tensor is copied as any other."""
_TRIED = 32


class MappedTensors:
    """Copies tensors of which some are mapped parts of files.

    A tensor is read from its file if it has 64 KiB or more, if little of it is in the page cache,
    if the mapping is private and nobody has written to it, and if the path still has the same file.
    What is mapped after this object is made is copied as any other tensor.

    Use it in a `with` statement, which ends all copies; it raises OSError if a file cannot be read.
    """

    def __init__(self) -> None:
        self._files = mapped_files()
        self._starts = [each.start for each in self._files]
        self._opened: dict[tuple[str, int], OpenedFile | None] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="neaptide-files")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="neaptide-pages")
        self._made: BounceBuffers | None = None
        self._begun: list[Future[None]] = []
        self._files_open = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for all copies; after an error, for those that are under way."""
        with self._files_open, self._pool, self._ahead:
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
        flat, buffers = bytes_of(place), self._made
        for start in range(found.start // _PAGE * _PAGE, found.stop, _PIECE):
            first, stop = max(start, found.start), min(start + _PIECE, found.stop)
            part = flat[first - found.start : stop - found.start]
            ready = self._populating(part) if lies_in_slab(place) else None
            self._begin(_bounced, buffers, ready, found.file.direct, start, first - start, part)

    def own(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the mapped ones of `tensors` memory of their own, with the same values.

        Tensors of the same bytes share their memory as before. What shares memory in another way,
        with each other or with any other tensor, stays mapped.
        """
        found = [(each, self._source(each)) for each in _free_of_others([*tensors])]
        owned = [(source, each) for each, source in found if source is not None]
        ordered = sorted({one for one, _ in owned}, key=lambda one: (one.file.plain, one.start))
        flats: dict[FileSpan, torch.Tensor] = {}
        for group in groups(ordered):
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

    def _read(self, group: list[FileSpan]) -> torch.Tensor:
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

    def _populating(self, memory: torch.Tensor) -> Future[bool]:
        """Begin to allocate pages, in one thread, in order: reads that allocate wait for it."""
        return self._ahead.submit(populate, memory.data_ptr(), memory.nbytes)

    def _source(self, tensor: torch.Tensor) -> FileSpan | None:
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
        file = None if cached is None or cached > COLD else self._open(place)
        if file is None:
            return None
        source = FileSpan(file, start, start + tensor.nbytes)
        return source if shows(source, tensor) else None

    def _open(self, place: Mapping) -> OpenedFile | None:
        key = place.path, place.inode
        if key not in self._opened:
            self._opened[key] = file = opened(Path(place.path), place.inode)
            if file is not None:
                self._files_open.callback(file.close)
        return self._opened[key]


def _free_of_others(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors whose memory no other one uses, but for equal views among them."""
    plain = [each for each in tensors if _is_mappable(each)]
    spans = {id(each): _range(each) for each in tensors if _has_memory(each)}
    shared: set[tuple[int, int]] = set()
    last, end = (0, 0), 0
    for span in sorted(set(spans.values())):
        if span[0] < end:
            shared |= {last, span}
        if span[1] > end:
            last, end = span, span[1]
    count = Counter(spans.values())
    return [
        each
        for each in plain
        if spans[id(each)] not in shared and users(each.untyped_storage()) <= count[spans[id(each)]]
    ]


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in sizes)
    return tensor.data_ptr(), tensor.data_ptr() + count * tensor.element_size()


def _has_memory(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and not tensor.is_nested and tensor.numel() > 0


def _is_plain(source: torch.Tensor, place: torch.Tensor) -> bool:
    same = source.shape == place.shape and source.dtype == place.dtype
    return same and place.device.type == "cpu"


def _is_mappable(tensor: torch.Tensor) -> bool:
    if not _has_memory(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.is_contiguous() and tensor.nbytes >= _LEAST


def _bounced(
    buffers: BounceBuffers,
    ready: Future[bool] | None,
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


def _after(ready: Future[bool], work: Callable[..., None], *arguments: Any) -> None:
    ready.result()
    work(*arguments)


def _fill(number: int, offset: int, memory: torch.Tensor, needed: int) -> None:
    """Read whole pages into `memory`, page-aligned; the file has at least `needed` bytes there."""
    left = memoryview(memory.numpy())  # type: ignore[arg-type]  # an array is a buffer
    done = 0
    while done < needed:
        try:
            read = os.preadv(number, [left[done:]], offset + done)
        except OSError as error:
            path = str(Path(f"/proc/self/fd/{number}").readlink())
            raise OSError(error.errno, error.strerror, path) from error
        if not read:
            msg = "the file is shorter than what is mapped"
            raise OSError(msg)
        done += read
