"""Memory that a copy still uses when it is freed, as after `record_stream`: it comes back later.

PyTorch's allocator asks at each allocation which copies have ended by then. A host that is ahead of
the device takes other memory in the meantime.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from .caching import CachingAllocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .allocations import LogEntry


class HeldBack:
    """Frees of a log of changes that have an effect later, at another change of it.

    Attributes:
        now: returns the time of the host, an element for each machine.
    """

    def __init__(self) -> None:
        self.now: Callable[[], Any] = lambda: np.zeros(1)
        self._waiting: list[tuple[int, Any, Any]] = []
        self._back: dict[int, Any] = {}

    def freed(self, place: int, until: Sequence[Callable[[], Any]]) -> None:
        """Note that change `place` frees what copies use; each of `until` returns their end."""
        end = reduce(np.maximum, (one() for one in until))
        self._wait(place, end)

    def allocated(self, place: int) -> None:
        """Note that change `place` allocates: what is no longer used is free before it."""
        if not self._waiting:
            return
        now, left = self.now(), []
        for freed, end, back in self._waiting:
            back[(end <= now) & (back < 0)] = place
            if (back < 0).any():
                left.append((freed, end, back))
        self._waiting = left

    def repeat(self, place: int, again: int) -> None:
        """Note that change `again` frees as change `place` did, if that one had to wait."""
        if place not in self._back:
            return
        back = self._back[place]
        self._back[again] = np.where(back < 0, back, back + again - place)

    def back_at(self, place: int, machine: int) -> int | None:
        """Return at which change the memory of a free is back; -1 if never, None if at once."""
        back = self._back.get(place)
        return None if back is None else int(back[machine])

    def _wait(self, place: int, end: Any) -> None:
        back = np.full(np.shape(end), -1)
        self._back[place] = back
        self._waiting.append((place, end, back))


def reserved(changes: Iterable[LogEntry], held: HeldBack, machine: int) -> int:
    """Return the bytes that PyTorch's caching allocator takes for all changes on the device."""
    allocator = CachingAllocator()
    chunks: dict[int, Any] = {}
    sizes: Counter[int] = Counter()
    later: defaultdict[int, list[Any]] = defaultdict(list)
    for place, change in enumerate(changes):
        for chunk in later.pop(place, ()):
            allocator.free(chunk)
        if change.piece.where != "device":
            continue
        piece = id(change.piece)
        if piece in chunks:
            back = held.back_at(place, machine)
            if back is None:
                allocator.free(chunks.pop(piece))
            else:
                later[back].append(chunks.pop(piece))
        sizes[piece] += change.bytes
        if sizes[piece]:
            chunks[piece] = allocator.allocate(sizes[piece])
    return allocator.reserved
