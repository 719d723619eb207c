"""The allocator's arithmetic, by hand and by law. A simulated GPU checks it in its own room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neaptide_toolkit.dry_run.caching import (
    LARGE_ROUND,
    MIDDLE_SEGMENT,
    SMALL_SEGMENT,
    CachingAllocator,
)

MIB = 2**20


def test_small_allocations_share_a_segment() -> None:
    allocator = CachingAllocator()
    for _ in range(3):
        allocator.allocate(1000)
    assert (allocator.allocated, allocator.reserved) == (3 * 1024, SMALL_SEGMENT)


def test_a_large_allocation_has_a_segment_of_its_own() -> None:
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)
    assert allocator.reserved == 6 * LARGE_ROUND


def test_freed_neighbours_become_one_chunk() -> None:
    allocator = CachingAllocator()
    chunks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for chunk in chunks:
        allocator.free(chunk)
    allocator.allocate(MIDDLE_SEGMENT)
    assert (allocator.allocated, allocator.reserved) == (MIDDLE_SEGMENT, MIDDLE_SEGMENT)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans()), max_size=40))
def test_reserved_bytes_hold_what_is_allocated(steps: list[tuple[int, bool]]) -> None:
    allocator, held = CachingAllocator(), []
    for nbytes, frees in steps:
        held.append((allocator.allocate(nbytes), nbytes))
        assert sum(size for _, size in held) <= allocator.allocated <= allocator.reserved
        if frees:
            allocator.free(held.pop(len(held) // 2)[0])
    for chunk, _ in held:
        allocator.free(chunk)
    assert allocator.allocated == 0
