"""Copies between pageable memory and a device are asked for by a thread, in order."""

from __future__ import annotations

import threading

import pytest
import torch
from streamed import Sleepy

from neaptide_plugins.optimizer_offload.lanes import PageableLane, copying_lane
from neaptide_toolkit.offload import ThreadLane


def test_work_runs_in_order_behind_what_it_waits_for() -> None:
    lane, earlier = PageableLane(ThreadLane("stream")), Sleepy("earlier")
    done: list[object] = []
    first = earlier.submit("first", lambda: done.append(1))
    second = lane.submit("second", lambda: done.append(2), (first, None))
    third = lane.submit("third", lambda: done.append(threading.current_thread().name))
    third.wait()
    second.finish()
    assert [1, 2] == done[:2]
    assert str(done[2]).startswith("neaptide-stream")
    lane.close()
    earlier.close()


def test_what_work_raises_is_raised_where_it_is_waited_for() -> None:
    lane = PageableLane(ThreadLane("stream"))

    def fails() -> None:
        msg = "no room"
        raise MemoryError(msg)

    ticket = lane.submit("fails", fails)
    with pytest.raises(MemoryError, match="no room"):
        ticket.wait()
    lane.close()  # the error is known


def test_an_error_for_which_nobody_waited_is_raised_at_the_close() -> None:
    lane = ThreadLane("copies")

    def fails() -> None:
        msg = "no room"
        raise MemoryError(msg)

    lane.submit("fails", fails)
    with pytest.raises(MemoryError, match="no room"):
        lane.close()
    lane.close()


@pytest.mark.parametrize("pinned", [True, False])
def test_a_cpu_needs_one_thread(pinned: bool) -> None:  # noqa: FBT001 - a parameter of the test
    lane = copying_lane(torch.device("cpu"), pinned=pinned)
    assert isinstance(lane, ThreadLane)
    lane.close()
