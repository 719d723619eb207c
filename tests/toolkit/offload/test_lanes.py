"""Lanes on the host: who copies, what a ticket raises, and what Ctrl-C leaves behind."""

from __future__ import annotations

import os

import pytest
import torch

from neaptide_toolkit.offload import DirectLane, ThreadLane, lane_for

CPU = torch.device("cpu")


def fails() -> None:
    msg = "no room"
    raise OSError(msg)


@pytest.mark.parametrize("kind", [DirectLane, ThreadLane])
def test_the_ticket_raises_the_error_of_the_work_and_of_what_it_waits_for(
    kind: type[DirectLane | ThreadLane],
) -> None:
    lane, ran = kind("copies"), list[int]()
    ticket = lane.submit("fails", fails)
    after = lane.submit("waits", lambda: ran.append(1), (ticket, None))
    for one in (ticket, after):
        for waiting in (one.wait, one.finish):
            with pytest.raises(OSError, match="no room"):
                waiting()
    lane.close()
    assert not ran


@pytest.mark.parametrize("kind", [DirectLane, ThreadLane])
def test_an_error_for_which_nobody_waits_is_raised_at_the_end(
    kind: type[DirectLane | ThreadLane],
) -> None:
    lane = kind("copies")
    lane.submit("fails", fails)
    with pytest.raises(OSError, match="no room"):
        lane.close()


@pytest.mark.parametrize("kind", [DirectLane, ThreadLane])
def test_the_listener_is_told_of_each_copy(kind: type[DirectLane | ThreadLane]) -> None:
    told = list[tuple[str, str, float, float]]()
    lane = kind("copies", lambda *what: told.append(what))
    lane.submit("first", lambda: None).finish()
    lane.submit("second", lambda: None).finish()
    lane.close()
    assert [what[:2] for what in told] == [("copies", "first"), ("copies", "second")]
    assert all(start <= end for *_, start, end in told)


def test_a_direct_copy_that_ctrl_c_interrupts_is_whole() -> None:
    source, target = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    interrupts = [KeyboardInterrupt()]

    def copy() -> None:
        target[:4] = source[:4]
        if interrupts:
            raise interrupts.pop()
        target[4:] = source[4:]

    with pytest.raises(KeyboardInterrupt):
        DirectLane("copies").submit("copy", copy)
    assert torch.equal(source, target)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are counted another way")
@pytest.mark.parametrize(
    ("largest", "spare", "waits", "kind"),
    [
        (1 << 20, True, False, DirectLane),
        (64 << 20, True, False, ThreadLane),
        (None, True, False, ThreadLane),
        (64 << 20, False, False, DirectLane),
        (None, False, False, DirectLane),
        (1 << 20, False, True, ThreadLane),
    ],
)
def test_a_thread_copies_if_copies_are_large_and_a_core_is_left_or_if_a_copy_waits(
    monkeypatch: pytest.MonkeyPatch,
    largest: int | None,
    spare: bool,  # noqa: FBT001 - a case of the table
    waits: bool,  # noqa: FBT001 - a case of the table
    kind: type,
) -> None:
    cores = torch.get_num_threads() + spare
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    lane = lane_for(CPU, "copies", waits=waits, largest=largest)
    lane.close()
    assert type(lane) is kind
