"""What does not hold the host or the device: evictions of blocks on their way, and CPU updates."""

from __future__ import annotations

import simulated_gpu
import torch
from scenarios_of_streaming import stream_of, update
from streamed_net import Net


def waited() -> float:
    """Return how many seconds the host has waited for the device."""
    return float(simulated_gpu.statistics()["host_waited"])


def test_an_eviction_does_not_wait_for_the_copy_of_the_block_that_is_under_way() -> None:
    torch.manual_seed(0)
    model = Net()
    streaming, _, loss = stream_of(model)
    update(streaming, loss)
    update(streaming, loss)
    (block, *_) = [one for one in streaming.blocks if one.slot is not None]  # it is prefetched
    before = waited()
    streaming.residency.evict(block)
    assert waited() == before
    block.settle()
    assert waited() > before  # the copy was under way
    streaming.close()


def test_what_is_fetched_after_an_update_on_the_cpu_is_there_for_the_next_forward() -> None:
    torch.manual_seed(0)
    model = Net()
    streaming, _, loss = stream_of(model)
    for _ in range(3):  # the order of uses is learnt
        update(streaming, loss)
        first, missed = streaming.blocks[0], streaming.residency.waited_for
        with streaming.residency.use(first, "forward"):
            pass
    assert streaming.residency.waited_for == missed
    streaming.close()
