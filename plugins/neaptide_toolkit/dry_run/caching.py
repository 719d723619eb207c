"""The memory that PyTorch's CUDA allocator takes from a device for a sequence of allocations.

Rounding, pools, splitting and merging are those of `c10/cuda/CUDACachingAllocator.cpp`, for one
stream and without expandable segments. Memory that a copy on another stream still uses when it is
freed, as after `record_stream`, comes back later: PyTorch's allocator asks at each allocation which
copies have ended by then. A host that is ahead of the device takes other memory in the meantime.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUND = 512
SMALL, SMALL_SEGMENT = 2**20, 2 * 2**20
"""Largest allocation of the small pool, and the bytes of a segment of this pool."""
MIDDLE, MIDDLE_SEGMENT = 10 * 2**20, 20 * 2**20
"""Below this size, large allocations share segments of this size."""
LARGE_ROUND = 2 * 2**20


@attrs.define(eq=False)
class _Chunk:
    address: int
    size: int
    pool: Literal["small", "large"]
    before: _Chunk | None = None
    after: _Chunk | None = None
    is_free: bool = False

    @property
    def order(self) -> tuple[int, int, _Chunk]:
        """Return what free chunks are sorted by. No two have the same address."""
        return self.size, self.address, self


class CachingAllocator:
    """Counts the bytes that a program has, and those that the allocator has taken for it.

    Attributes:
        allocated: bytes in use, rounded up to chunks.
        reserved: bytes of all segments. Segments are kept when they are free.
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self._next = 0
        self._free: dict[str, list[tuple[int, int, _Chunk]]] = {"small": [], "large": []}

    def allocate(self, nbytes: int) -> _Chunk:
        """Return a chunk of at least `nbytes` bytes."""
        size = max(ROUND, _up(nbytes, ROUND))
        pool: Literal["small", "large"] = "small" if size <= SMALL else "large"
        free = self._free[pool]
        place = bisect_left(free, (size, -1))
        chunk = free.pop(place)[-1] if place < len(free) else self._segment(size, pool)
        chunk.is_free = False
        rest = chunk.size - size
        if rest >= ROUND and (pool == "small" or rest > SMALL):
            self._split(chunk, size)
        self.allocated += chunk.size
        return chunk

    def free(self, chunk: _Chunk) -> None:
        """Take a chunk back, and merge it with free chunks beside it."""
        self.allocated -= chunk.size
        chunk.is_free = True
        if chunk.before is not None and chunk.before.is_free:
            self._drop(chunk.before)
            chunk = _joined(chunk.before, chunk)
        if chunk.after is not None and chunk.after.is_free:
            self._drop(chunk.after)
            chunk = _joined(chunk, chunk.after)
        insort(self._free[chunk.pool], chunk.order)

    def _segment(self, size: int, pool: Literal["small", "large"]) -> _Chunk:
        if pool == "small":
            whole = SMALL_SEGMENT
        else:
            whole = MIDDLE_SEGMENT if size < MIDDLE else _up(size, LARGE_ROUND)
        self.reserved += whole
        self._next += whole
        return _Chunk(self._next - whole, whole, pool)

    def _split(self, chunk: _Chunk, size: int) -> None:
        rest = _Chunk(chunk.address + size, chunk.size - size, chunk.pool, chunk, chunk.after)
        if rest.after is not None:
            rest.after.before = rest
        chunk.size, chunk.after = size, rest
        rest.is_free = True
        insort(self._free[chunk.pool], rest.order)

    def _drop(self, chunk: _Chunk) -> None:
        free = self._free[chunk.pool]
        del free[bisect_left(free, chunk.order)]


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


def _joined(first: _Chunk, second: _Chunk) -> _Chunk:
    first.size += second.size
    first.after, first.is_free = second.after, True
    if first.after is not None:
        first.after.before = first
    return first


def _up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
