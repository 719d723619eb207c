"""The caching allocator: what torch's reports for the same calls, by its published constants."""

from __future__ import annotations

import random

import pytest
import simulated_gpu
import torch

MIB = 1 << 20


def taken(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # a rest of 1 MiB or less is not split off
    ],
)
def test_sizes_are_rounded_as_torch_rounds_them(size: int, allocated: int, reserved: int) -> None:
    kept = taken(size)
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() == reserved
    del kept
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == reserved
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_small_blocks_share_a_segment_and_what_is_left_is_split() -> None:
    kept = [taken(1000) for _ in range(4)]
    assert torch.cuda.memory_reserved() == 2 * MIB
    del kept[1]
    stats = torch.cuda.memory_stats()
    assert stats["segment.all.current"] == 1
    assert stats["inactive_split.all.current"] == 2  # the hole and the rest
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 3 * 1024
    assert stats["requested_bytes.all.current"] == 3000


def test_a_stream_has_a_cache_of_its_own() -> None:
    kept = taken(4 * MIB)
    del kept
    with torch.cuda.stream(torch.cuda.Stream()):
        other = taken(4 * MIB)
    assert torch.cuda.memory_reserved() == 40 * MIB
    del other


def test_fragments_make_a_device_full_that_expandable_segments_would_fill() -> None:
    def fill() -> None:
        kept = [taken(30 * MIB) for _ in range(8)]
        holes = kept[::2]
        rest = kept[1::2]
        del kept, holes
        bigger = taken(100 * MIB)
        del rest, bigger

    simulated_gpu.configure(capacity=260 * MIB)
    fill()  # whole segments are given back: nothing is in the way
    torch.cuda.empty_cache()
    pieces = [taken(9 * MIB) for _ in range(26)]
    kept = pieces[::2]
    del pieces
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        taken(120 * MIB)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    del kept
    torch.cuda.empty_cache()
    simulated_gpu.configure(expandable_segments=True)
    pieces = [taken(9 * MIB) for _ in range(26)]
    del pieces
    bigger = taken(250 * MIB)
    assert torch.cuda.memory_reserved() == 260 * MIB
    del bigger


def test_the_capacity_is_a_hard_limit_of_results_too() -> None:
    simulated_gpu.configure(capacity=64 * MIB)
    kept = torch.ones(3 * MIB, device="cuda")  # 12 MiB
    with pytest.raises(
        torch.OutOfMemoryError, match="capacity of 67108864 bytes, of which 12582912 are reserved"
    ):
        kept.repeat(5)
    del kept


def test_recorded_memory_is_kept_until_the_stream_has_ended() -> None:
    side = torch.cuda.Stream()
    host = torch.empty(16 * MIB, dtype=torch.uint8).pin_memory()
    kept = taken(16 * MIB)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(kept, non_blocking=True)
    kept.record_stream(side)
    del kept
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.current"] == 16 * MIB
    other = taken(16 * MIB)  # the copy is under way: fresh memory
    assert torch.cuda.memory_reserved() == 32 * MIB
    torch.cuda.synchronize()
    del other
    both = taken(16 * MIB), taken(16 * MIB)
    assert torch.cuda.memory_reserved() == 32 * MIB
    del both


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_in_any_order_of_calls(seed: int, expandable: bool) -> None:  # noqa: FBT001
    simulated_gpu.configure(capacity=200 * MIB, expandable_segments=expandable)
    draw = random.Random(seed)
    kept: list[torch.Tensor] = []
    with simulated_gpu.fake_data():
        for _ in range(600):
            if draw.random() < 0.55:
                try:
                    kept.append(
                        taken(
                            draw.choice(
                                [
                                    draw.randrange(1, 4096),
                                    draw.randrange(1, 2 * MIB),
                                    draw.randrange(1, 30 * MIB),
                                ]
                            )
                        )
                    )
                except torch.OutOfMemoryError:
                    kept.clear()
            elif kept:
                kept.pop(draw.randrange(len(kept)))
            requested = sum(one.nbytes for one in kept)
            assert torch.cuda.memory_stats()["requested_bytes.all.current"] == requested
            assert requested <= torch.cuda.memory_allocated()
            assert torch.cuda.memory_allocated() <= torch.cuda.memory_reserved() <= 200 * MIB
        kept.clear()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
