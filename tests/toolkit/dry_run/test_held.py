"""Memory that a copy still uses when it is freed is taken again only when the copy has ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from neaptide_toolkit.dry_run.allocations import DEVICE, AllocationLog
from neaptide_toolkit.dry_run.clock import Clock
from neaptide_toolkit.machine import profiles

MIB = 2**20
SIZE = 30 * MIB
EMPTY = torch.ops.aten.empty_like.default


def made(log: AllocationLog) -> torch.Tensor:
    tensor = torch.empty(SIZE, dtype=torch.uint8)
    log.made(tensor.untyped_storage(), device=DEVICE)
    return tensor


def used_until(end: Any, times: list[Any]) -> AllocationLog:
    """Return a log of a tensor that copies use, and of one after it for each time of the host."""
    log = AllocationLog(accelerated=True)
    first = made(log)
    log.hold(first, lambda: np.asarray(end))
    del first
    for now in times:
        log.held.now = lambda now=now: np.asarray(now)
        other = made(log)
        del other
    return log


@pytest.mark.parametrize(
    ("times", "segments"), [([5.0], 1), ([4.0], 2), ([4.0, 4.0], 2), ([4.0, 5.0], 2)]
)
def test_the_next_tensor_takes_other_memory_while_a_copy_uses_it(
    times: list[float], segments: int
) -> None:
    log = used_until([5.0], [[now] for now in times])
    assert log.reserved() == segments * SIZE


def test_each_machine_has_its_own_copies() -> None:
    log = used_until([1.0, 9.0], [[2.0, 2.0]])
    assert [log.reserved(0), log.reserved(1)] == [SIZE, 2 * SIZE]


def test_a_repeated_free_waits_as_long() -> None:
    log = AllocationLog(accelerated=True)

    def part() -> None:
        one = made(log)
        log.hold(one, lambda: np.asarray([1.0]))
        del one
        other = made(log)  # beside it
        log.held.now = lambda: np.asarray([2.0])
        last = made(log)  # in its place
        del other, last
        log.held.now = lambda: np.asarray([0.0])

    part()
    since = len(log.changes)
    part()
    part_bytes, count = log.reserved(), len(log.changes) - since
    log.repeat(since, since + count, ())
    assert part_bytes == 2 * SIZE == log.reserved()
    waits = [log.held.back_at(place, 0) for place in range(len(log.changes))]
    gaps = [back - place for place, back in enumerate(waits) if back is not None]
    assert gaps == [2, 2, 2]


def test_a_lane_holds_until_all_that_it_was_given_has_run() -> None:
    clock = Clock([profiles.load("rtx4090").rates], lambda _: False)
    held: list[Any] = []
    clock.held = lambda _, until: held.append(until)
    lane = clock.lane("to host")
    source, target = torch.empty(MIB), torch.empty(MIB)
    lane.hold(source)

    def copy() -> None:
        clock.ran(torch.ops.aten.copy_.default, (target, source), [target, source], target)

    ticket = lane.submit("a copy", copy)
    (until,) = held
    assert until() == ticket.end > clock.enqueued
    ticket.finish()
    assert clock.enqueued == ticket.end


def test_memory_without_values_takes_no_time() -> None:
    clock = Clock([profiles.load("rtx4090").rates], lambda _: False)
    given = torch.empty(MIB)
    clock.ran(EMPTY, (given,), [given], torch.empty_like(given))
    assert clock.now == clock.enqueued == 0
