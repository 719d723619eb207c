"""A refuge (a place for evicted tensors) in host memory.

Evicted state can be read in host memory. It is copied back asynchronously.
"""

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
    from neaptide_toolkit.offload import Copies


class HostState:
    """A refuge in host memory. The copy back runs in parallel with the computation.

    Args:
        device: the device from which state is evicted.
        pin: register the host buffer, so that copies run at the link's speed. The pinned
            buffer is kept, because pinning is slow. A pageable buffer is freed when the state has
            been copied back.
        lane: the queue that runs the copies; by default a new lane for the device.
    """

    readable = True

    def __init__(self, device: torch.device, *, pin: bool, lane: Copies | None = None) -> None:
        self.device = device
        self._pin = pin
        self._slab: Slab | None = None
        self._moved: list[Moved] = []
        self._back: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        """For each entry of `_moved`: the target on the device, and tensor versions at `begin`."""
        self._lane = lane
        self._ticket: Ticket | None = None
        self._end: Callable[[], None] | None = None
        self.left: Mapping[str, int] = {}
        """Bytes that the last eviction could not evict, by reason."""
        self.error: float | None = None

    @property
    def is_away(self) -> bool:
        """True if any state is on the host or is being copied back."""
        return bool(self._moved)

    @property
    def note(self) -> str | None:
        """One line that states why the buffer could not be pinned; None if it could."""
        return None if self._slab is None else self._slab.reason

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Make the store evict the state of `spans` into this refuge."""
        self.left = store.evictable(spans, of="state").left
        self._end = store.evict(spans, of="state", refuge=self)

    def take(self, storages: list[SharedStorage]) -> None:
        """Copy `storages` to the host and rebind their tensors to the copies.

        The call waits for the copies, because the device memory can be freed only after them.
        Raises MemoryError if the host has too little memory. After an error every tensor is still
        on the device.
        """
        assert not self._moved, "the state is evicted already"
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
        """Start to copy the state back. The tensors refer to host memory until `give_back`."""
        if self._ticket is not None or not self._moved:
            return
        lane = self._lanes()
        rooms = [
            torch.empty(moved.host.nbytes, dtype=torch.uint8, device=self.device)
            for moved in self._moved
        ]
        hosts = [moved.host for moved in self._moved]
        self._back = [
            (room, _versions(moved.tensors)) for room, moved in zip(rooms, self._moved, strict=True)
        ]

        def copy() -> None:
            for room, host in zip(rooms, hosts, strict=True):
                room.copy_(host, non_blocking=True)

        self._ticket = lane.submit("optimizer state returns", copy, (computed(self.device),))

    def give_back(self) -> None:
        """Rebind all tensors to the device. Computation that is queued later waits for the copies.

        A call that fails can be repeated.
        """
        if not self._moved:
            return
        self.begin()
        assert self._ticket is not None, "begin has queued the copies"
        try:
            self._ticket.wait()
        except BaseException:
            self._ticket = None
            raise
        for moved, (room, versions) in zip(self._moved, self._back, strict=True):
            if _versions(moved.tensors) != versions:  # The tensor was changed after the copy began.
                room.copy_(moved.host)
            moved.put_back(room.untyped_storage())
        self._moved, self._back, self._ticket = [], [], None
        if not self._pin:
            self._slab = None

    def finish(self) -> None:
        """Make the store end the eviction."""
        end = self._end or self.give_back  # `_end` is None after an interrupted `evict`
        end()
        self._end = None

    def close(self) -> None:
        """End the lane's thread or stream, and free the host buffer."""
        if self._lane is not None:
            self._lane.close()
        self._lane = self._slab = None

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return the bytes that an eviction would free, and the size of the host buffer for it."""
        found = store.evictable(spans, of="state")
        if self._slab is None:
            return Room(leaves=found.bytes, host=places(found.storages)[1])
        return Room(leaves=found.bytes, host=self._slab.size, kept=self._slab.size)

    def _buffer(self, size: int) -> torch.Tensor:
        if self._slab is None or self._slab.size < size:
            # Only the device has waited for the last copy from the old buffer. Now the host waits.
            self._lanes().submit("optimizer state is back", lambda: None).finish()
            self._slab = None  # Free the old buffer before the new one is allocated.
            self._slab = Slab.on_host_of(self.device, size, pin=self._pin)
        return self._slab.flat

    def _lanes(self) -> Copies:
        if self._lane is None:
            self._lane = copying_lane(self.device, pinned=self._pin)
        return self._lane


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)  # noqa: SLF001 - in-place writes increase it
