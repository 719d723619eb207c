"""What a dry run allocates and frees, in order, and the peaks of it."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import attrs
import torch

from neaptide_toolkit.offload.disk import FilePages

from .caching import CachingAllocator, HeldBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Where = Literal["device", "host", "pages", "disk"]
"""The allocator of the device or of the host, pages of RAM outside of both, or a file."""
Check = Callable[[Mapping[Where, int]], None]
"""Is given the bytes in each place whenever something was made, and may raise."""
DEVICE = torch.device("cpu", 0)
"""Stands for the accelerator in a dry run: tensors on it are told from tensors on `cpu`."""


ASSEMBLY, OTHER = "assembly", "other"
"""The part of the run before the first step, and what memory is for that is made there."""


@attrs.define(eq=False)
class Holding:
    """Memory of one storage, or of a number of pages."""

    where: Where
    kind: str
    """What it is for, such as `weights`; if nobody knows, the moment at which it was made."""
    bytes: int = 0
    born: int = 0
    """How many changes the log had when it was made."""
    until: tuple[Callable[[], Any], ...] = ()
    """Each returns when the copies end that use it. Freed memory waits for them."""


class LogEntry(NamedTuple):
    """Bytes by which a piece grew or, below 0, shrank, during a part of a run."""

    piece: Holding
    bytes: int
    during: str


def no_limit(_: Mapping[Where, int]) -> None:
    """Allow any number of bytes."""


class _Entries:
    """Log entries in order.

    Three lists instead of a list of entries: millions of objects less for the garbage collector.
    """

    def __init__(self) -> None:
        self._pieces: list[Holding] = []
        self._bytes: list[int] = []
        self._during: list[str] = []

    def __len__(self) -> int:
        return len(self._bytes)

    def __iter__(self) -> Iterator[LogEntry]:
        return map(LogEntry, self._pieces, self._bytes, self._during)

    def append(self, piece: Holding, nbytes: int, during: str) -> None:
        self._pieces.append(piece)
        self._bytes.append(nbytes)
        self._during.append(during)

    def __getitem__(self, part: slice) -> list[LogEntry]:
        columns = (self._pieces, self._bytes, self._during)
        return [*map(LogEntry, *(one[part] for one in columns))]


@attrs.frozen
class Peak:
    """The most bytes during a part of a run, and what held them."""

    during: str
    bytes: int
    kinds: Mapping[str, int]


class AllocationLog:
    """A log of all changes.

    Args:
        accelerated: whether the device has memory of its own. If so, a tensor is there if it was
            made from tensors that are, or on `DEVICE`.
        check: sees what is allocated; what it raises is raised.

    Attributes:
        during: the part of the run that is going on.
        kind: what a new piece is said to be for.
        changes: in order.
        held: which frees of them have an effect later.
        now: bytes in each place.
    """

    def __init__(self, *, accelerated: bool, check: Check = no_limit) -> None:
        self.during, self.kind = ASSEMBLY, OTHER
        self.now: Counter[Where] = Counter()
        self._accelerated, self._check = accelerated, check
        self.changes = _Entries()
        self.held = HeldBack()
        self._pieces: dict[int, Holding] = {}

    def made(
        self,
        storage: torch.UntypedStorage,
        given: Iterable[torch.Tensor] = (),
        device: torch.device | None = None,
    ) -> None:
        """Note a storage that was made from the tensors `given`, unless it is known.

        `device` is `DEVICE` or the host; without it, the storage is where `given` is.
        """
        address = storage._cdata  # noqa: SLF001 - two Python objects may stand for one storage
        if address not in self._pieces:
            piece = Holding(self._place(given, device), self.kind, born=len(self.changes))
            self._hold(storage, piece)
            self._change(piece, storage.nbytes())
            self._check(self.now)

    def repeat(self, since: int, until: int, kept: Iterable[tuple[Any, Any]]) -> None:
        """Note again, for the same parts of the run, what was made and freed between two changes.

        `kept` are tensors that were made then and are still there, each with one that was made in
        its place this time.
        """
        twins: dict[int, Holding] = {}
        for old, new in kept:
            address = old.untyped_storage()._cdata  # noqa: SLF001 - as above
            twin = self._hold(new.untyped_storage(), attrs.evolve(self._pieces[address], bytes=0))
            twins[id(self._pieces[address])] = twin
        before = self.during
        for place, change in enumerate(self.changes[since:until], since):
            piece = change.piece
            if id(piece) not in twins and piece.born >= since and not piece.bytes:
                twins[id(piece)] = attrs.evolve(piece)
            if id(piece) in twins:
                self.during = change.during
                self.held.repeat(place, len(self.changes))
                self._change(twins[id(piece)], change.bytes)
        self.during = before

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is in the host's memory and the device has memory of its own."""
        piece = self._pieces.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        return self._accelerated and (piece is None or piece.where != "device")

    def is_on_disk(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory is in a file."""
        piece = self._pieces.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        return piece is not None and piece.where == "disk"

    def _place(self, given: Iterable[torch.Tensor], device: torch.device | None) -> Where:
        if not self._accelerated:
            return "device"
        if device is not None:
            return "device" if device == DEVICE else "host"
        sources = [one for one in given if one.ndim]
        if sources:  # a tensor on the accelerator says that its device is `cpu`
            return "host" if all(map(self.is_on_host, sources)) else "device"
        return "host" if self.during == ASSEMBLY else "device"

    def mapped(self, pages: Any, flat: torch.Tensor) -> None:
        """Note pages of RAM or of a file. Their tensor is not counted again."""
        where: Where = "disk" if isinstance(pages, FilePages) else "pages"
        piece = Holding(where, "buffers of plugins")
        self._change(piece, len(pages))
        weakref.finalize(pages, self._change, piece, -len(pages)).atexit = False
        self._pieces[flat.untyped_storage()._cdata] = piece  # noqa: SLF001
        self._check(self.now)

    def hold(self, tensor: torch.Tensor, until: Callable[[], Any]) -> None:
        """Note that copies use a tensor; `until` is asked for their end when it is freed."""
        piece = self._pieces.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        if piece is not None and piece.where == "device":
            piece.until += (until,)

    def name(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Say what the memory of tensors is for, also for the time before."""
        for tensor in tensors:
            piece = self._pieces.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
            if piece is not None:
                piece.kind = kind

    @contextmanager
    def resized(self) -> Iterator[None]:
        """Within this context, changes of a storage's size are noted, too."""
        original = torch.UntypedStorage.resize_
        log = self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            piece, before = log._pieces.get(storage._cdata), storage.nbytes()  # noqa: SLF001
            result = original(storage, size)
            if piece is not None:
                log._change(piece, storage.nbytes() - before)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

    def peaks(self, *places: Where) -> dict[str, Peak]:
        """Return the peak of each part of the run, in these places together."""
        now: Counter[str] = Counter()
        total = 0
        found: dict[str, Peak] = {}
        for change in self.changes:
            if change.piece.where in places:
                now[change.piece.kind] += change.bytes
                total += change.bytes
            if change.during not in found or total > found[change.during].bytes:
                kinds = {kind: held for kind, held in now.items() if held}
                found[change.during] = Peak(change.during, total, kinds)
        return found

    def most(self, *places: Where) -> dict[str, int]:
        """Return the most bytes of each kind in these places, each at its own moment."""
        now: Counter[str] = Counter()
        found: dict[str, int] = {}
        for change in self.changes:
            if change.piece.where in places:
                kind = change.piece.kind
                now[kind] += change.bytes
                found[kind] = max(found.get(kind, 0), now[kind])
        return found

    def reserved(self, machine: int = 0) -> int:
        """Return the bytes that PyTorch's caching allocator takes for all changes on the device.

        `machine` is the place of the machine whose clock says when copies end.
        """
        allocator = CachingAllocator()
        chunks: dict[int, Any] = {}
        sizes: Counter[int] = Counter()
        later: defaultdict[int, list[Any]] = defaultdict(list)
        for place, change in enumerate(self.changes):
            for chunk in later.pop(place, ()):
                allocator.free(chunk)
            if change.piece.where != "device":
                continue
            piece = id(change.piece)
            if piece in chunks:
                back = self.held.back_at(place, machine)
                if back is None:
                    allocator.free(chunks.pop(piece))
                else:
                    later[back].append(chunks.pop(piece))
            sizes[piece] += change.bytes
            if sizes[piece]:
                chunks[piece] = allocator.allocate(sizes[piece])
        return allocator.reserved

    def _hold(self, storage: torch.UntypedStorage, piece: Holding) -> Holding:
        address = storage._cdata  # noqa: SLF001 - as above
        self._pieces[address] = piece
        weakref.finalize(storage, self._freed, address, piece).atexit = False
        return piece

    def _freed(self, address: int, piece: Holding) -> None:
        self._pieces.pop(address, None)
        if piece.until and piece.bytes:
            self.held.freed(len(self.changes), piece.until)
        self._change(piece, -piece.bytes)

    def _change(self, piece: Holding, nbytes: int) -> None:
        piece.bytes += nbytes
        self.now[piece.where] += nbytes
        if nbytes > 0 and piece.where == "device":
            self.held.allocated(len(self.changes))
        if nbytes:
            self.changes.append(piece, nbytes, self.during)
