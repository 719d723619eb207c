"""State in host memory: how it leaves the device, can be read meanwhile, and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide_toolkit.offload import ALIGNMENT, Slab, Ticket, computed

from .lanes import copying_lane
from .state_tensors import Room, as_bytes, moved_in, place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide_toolkit.offload import Lane

    from .state_tensors import Shared, State


@attrs.define(eq=False)
class _Moved:
    """One storage's bytes on the host, and whose they are."""

    host: torch.Tensor
    """uint8 `[bytes]`, a view of the slab."""
    tensors: tuple[torch.Tensor, ...]
    firsts: tuple[int, ...]
    """The first element of each in its storage."""
    back: torch.UntypedStorage | None = None
    """The storage it comes back to."""
    versions: tuple[int, ...] = ()
    """Of the tensors, when the way back began."""


class Away:
    """Keeps state in host memory outside torch's allocator; tensors stay the same objects.

    Args:
        device: where the state belongs.
        pin: register the host's buffer with CUDA, so that copies run at the link's speed, and
            keep it for the next time, for that takes long. Pageable, it goes when all is back.
        lane: what copies run on; left out, a lane of the device's own.
    """

    def __init__(self, device: torch.device, *, pin: bool, lane: Lane | None = None) -> None:
        self.device = device
        self._pin = pin
        self._slab: Slab | None = None
        self._moved: list[_Moved] = []
        self._lane = lane
        self._ticket: Ticket | None = None
        self.left: Mapping[str, int] = {}
        """Bytes that stayed the last time, by why."""
        self.error: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether any state is on the host, on its way back included."""
        return bool(self._moved)

    @property
    def note(self) -> str | None:
        """Why the buffer is pageable though it was to be pinned, in a line."""
        return None if self._slab is None else self._slab.reason

    def leave(self, state: State) -> None:
        """Copy what can be moved to the host and let its tensors lie there; all of it or none.

        Waits until the copies are over: nothing is free before. Raises MemoryError where the host
        has no room.
        """
        assert not self._moved, "it has left already"
        found = state.found()
        self.left = found.left
        if found.storages:
            self._take(found.storages)

    def _take(self, storages: Sequence[Shared]) -> None:
        offsets, size = _places(storages)
        flat = self._buffer(size)
        hosts = [
            flat[offset : offset + shared.bytes]
            for offset, shared in zip(offsets, storages, strict=True)
        ]

        def copy() -> None:
            for host, shared in zip(hosts, storages, strict=True):
                host.copy_(as_bytes(shared.storage), non_blocking=True)

        self._lanes().submit("optimizer state leaves", copy, (computed(self.device),)).finish()
        moved = [
            _Moved(host, shared.tensors, tuple(int(t.storage_offset()) for t in shared.tensors))
            for host, shared in zip(hosts, storages, strict=True)
        ]
        whole = flat.untyped_storage()
        self._moved = moved  # before any is: an interrupt at any line leaves what can come back
        try:
            for offset, shared in zip(offsets, storages, strict=True):
                for tensor in shared.tensors:
                    place(tensor, whole, offset)
        except BaseException:
            for each, shared in zip(moved, storages, strict=True):
                for tensor, first in zip(each.tensors, each.firsts, strict=True):
                    moved_in(tensor, shared.storage, first)
            self._moved = []
            raise

    def begin(self) -> None:
        """Start to copy what is away back to the device; what is read meanwhile is the host's."""
        if self._ticket is not None or not self._moved:
            return
        lane = self._lanes()
        rooms = [
            torch.empty(moved.host.nbytes, dtype=torch.uint8, device=self.device)
            for moved in self._moved
        ]
        hosts = [moved.host for moved in self._moved]
        for moved, room in zip(self._moved, rooms, strict=True):
            lane.hold(room)
            moved.back, moved.versions = room.untyped_storage(), _versions(moved.tensors)

        def copy() -> None:
            for room, host in zip(rooms, hosts, strict=True):
                room.copy_(host, non_blocking=True)

        self._ticket = lane.submit("optimizer state returns", copy, (computed(self.device),))

    def finish(self) -> None:
        """Have everything back on the device; what is computed from here on waits for it.

        What fails or is interrupted can be called again.
        """
        self.begin()
        if self._ticket is None:
            return
        try:
            self._ticket.wait()
        except BaseException:
            self._ticket = None
            raise
        for moved in self._moved:
            self._put_back(moved)
        self._moved, self._ticket = [], None
        if not self._pin:
            self._slab = None

    def close(self) -> None:
        """Let go of the thread or stream, and of the host's buffer."""
        if self._lane is not None:
            self._lane.close()
        self._lane = self._slab = None

    def room(self, state: State) -> Room:
        """Return what would leave, and the host's buffer: as it is, or as it would be."""
        found = state.found()
        _, size = _places(found.storages)
        if self._slab is None:
            return Room(leaves=found.bytes, host=size)
        return Room(leaves=found.bytes, host=self._slab.size, kept=self._slab.size)

    def _put_back(self, moved: _Moved) -> None:
        assert moved.back is not None, "the way back has begun"
        here = moved.host.untyped_storage()._cdata  # noqa: SLF001 - the storage's identity
        # Who has given one other memory meanwhile wants it to have that.
        away = [
            (tensor, first)
            for tensor, first in zip(moved.tensors, moved.firsts, strict=True)
            if tensor.untyped_storage()._cdata == here  # noqa: SLF001 - as above
        ]
        if away and _versions(moved.tensors) != moved.versions:  # written to since the copy began
            as_bytes(moved.back).copy_(moved.host)
        for tensor, first in away:
            moved_in(tensor, moved.back, first)

    def _buffer(self, size: int) -> torch.Tensor:
        if self._slab is None or self._slab.size < size:
            # Nobody has waited for the last copy out of it but the device.
            self._lanes().submit("optimizer state is back", lambda: None).finish()
            self._slab = None  # before the new one is there
            self._slab = Slab.on_host_of(self.device, size, pin=self._pin)
        return self._slab.flat

    def _lanes(self) -> Lane:
        if self._lane is None:
            self._lane = copying_lane(self.device, pinned=self._pin)
        return self._lane


def _places(storages: Sequence[Shared]) -> tuple[list[int], int]:
    offsets, size = [], 0
    for shared in storages:
        offsets.append(size)
        size += -(-shared.bytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)  # noqa: SLF001 - what in-place writes bump
