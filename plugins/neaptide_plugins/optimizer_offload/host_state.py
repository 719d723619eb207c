"""State in host memory: how it leaves the device, can be read meanwhile, and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_toolkit.offload import Moved, Slab, Ticket, as_bytes, computed, places, rebind

from .accounting import Room
from .lanes import copying_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from neaptide import ParameterStore, Span
    from neaptide.api.spans import SharedStorage
    from neaptide_toolkit.offload import Lane


class HostState:
    """A refuge in host memory outside torch's allocator, which comes back beside the computation.

    Args:
        device: where the state belongs.
        pin: register the host's buffer with CUDA, so that copies run at the link's speed, and
            keep it for the next time, for that takes long. Pageable, it goes when all is back.
        lane: what copies run on; left out, a lane of the device's own.
    """

    readable = True

    def __init__(self, device: torch.device, *, pin: bool, lane: Lane | None = None) -> None:
        self.device = device
        self._pin = pin
        self._slab: Slab | None = None
        self._moved: list[Moved] = []
        self._back: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        """For each of them where it comes back to, and its tensors' versions when that began."""
        self._lane = lane
        self._ticket: Ticket | None = None
        self._end: Callable[[], None] | None = None
        self.left: Mapping[str, int] = {}
        """Bytes that stayed the last time, by the reason."""
        self.error: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether any state is on the host, on its way back included."""
        return bool(self._moved)

    @property
    def note(self) -> str | None:
        """Why the buffer is pageable though it was to be pinned, in a line."""
        return None if self._slab is None else self._slab.reason

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Have the store evict the state of `spans` to here."""
        self.left = store.evictable(spans, of="state").left
        self._end = store.evict(spans, of="state", refuge=self)

    def take(self, storages: list[SharedStorage]) -> None:
        """Copy `storages` to the host and let their tensors lie there; all of them or none.

        Waits until the copies are over: nothing is free before. Raises MemoryError where the host
        has no room.
        """
        assert not self._moved, "it has left already"
        if not storages:
            return
        offsets, size = places(storages)
        flat = self._buffer(size)

        def copy() -> None:
            for offset, shared in zip(offsets, storages, strict=True):
                host = flat[offset : offset + shared.bytes]
                host.copy_(as_bytes(shared.storage), non_blocking=True)

        self._lanes().submit("optimizer state leaves", copy, (computed(self.device),)).finish()
        rebind(storages, flat, self._moved)

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
        for room in rooms:
            lane.hold(room)
        self._back = [
            (room, _versions(moved.tensors)) for room, moved in zip(rooms, self._moved, strict=True)
        ]

        def copy() -> None:
            for room, host in zip(rooms, hosts, strict=True):
                room.copy_(host, non_blocking=True)

        self._ticket = lane.submit("optimizer state returns", copy, (computed(self.device),))

    def give_back(self) -> None:
        """Have everything back on the device; what is computed from here on waits for it.

        What fails or is interrupted can be called again.
        """
        if not self._moved:
            return
        self.begin()
        assert self._ticket is not None, "the way back has begun"
        try:
            self._ticket.wait()
        except BaseException:
            self._ticket = None
            raise
        for moved, (room, versions) in zip(self._moved, self._back, strict=True):
            if _versions(moved.tensors) != versions:  # written to since the copy began
                room.copy_(moved.host)
            moved.put_back(room.untyped_storage())
        self._moved, self._back, self._ticket = [], [], None
        if not self._pin:
            self._slab = None

    def finish(self) -> None:
        """Have the store end the eviction."""
        end = self._end or self.give_back  # an eviction that was interrupted has no end
        end()
        self._end = None

    def close(self) -> None:
        """Let go of the thread or stream, and of the host's buffer."""
        if self._lane is not None:
            self._lane.close()
        self._lane = self._slab = None

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return what would leave, and the host's buffer: as it is, or as it would be."""
        found = store.evictable(spans, of="state")
        if self._slab is None:
            return Room(leaves=found.bytes, host=places(found.storages)[1])
        return Room(leaves=found.bytes, host=self._slab.size, kept=self._slab.size)

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


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)  # noqa: SLF001 - what in-place writes bump
