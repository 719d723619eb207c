"""Which state is fetched into which slot, and what the order of uses says of the next updates."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide_plugins.layer_streaming.updates import state_slots
from neaptide_plugins.layer_streaming.updates.state_slots import StateBuffer, StateSlots
from neaptide_plugins.layer_streaming.weights.order import Order
from neaptide_toolkit.offload import BufferLayout, computed, lane_for


def homes(count: int, *, trained: bool = True) -> list[StateBuffer]:
    found = []
    for number in range(count):
        parameter = nn.Parameter(torch.zeros(3), requires_grad=trained)
        layout = BufferLayout.of([parameter])
        flat = torch.full((layout.bytes,), number, dtype=torch.uint8)
        found.append(StateBuffer(f"block {number}", [(parameter, "exp_avg")], layout, flat, {}))
    return found


def slots_of(count: int, size: int) -> StateSlots:
    memory = [torch.zeros(size, dtype=torch.uint8).to(DEVICE) for _ in range(count)]
    return StateSlots(memory, lane_for(DEVICE, "to device"), lane_for(DEVICE, "to host"))


def value(home: StateBuffer) -> int:
    assert home.slot is not None
    home.arrival.finish()
    return int(home.slot.flat[0])


def test_state_that_waits_for_its_update_stays_when_another_is_fetched_early() -> None:
    first, second, third = homes(3)
    slots = slots_of(2, first.layout.bytes)
    slots.fetch(first)
    assert not slots.fetch_early([second])
    assert not slots.fetch_early([third])  # both slots wait for an update
    assert (value(first), value(second), third.slot) == (0, 1, None)
    assert first.slot is not None
    first.slot.stepped = True
    slots.fetch_early([third])
    assert (first.slot, value(second), value(third)) == (None, 1, 2)


def test_state_that_is_needed_now_takes_a_slot_in_any_case() -> None:
    first, second = homes(2)
    slots = slots_of(1, first.layout.bytes)
    slots.fetch(first)
    slots.fetch(second)
    assert (first.slot, value(second)) == (None, 1)


def test_state_that_was_updated_is_kept_if_its_block_is_the_next() -> None:
    first, second = homes(2)
    slots = slots_of(1, first.layout.bytes)
    slots.fetch(first)
    assert first.slot is not None
    first.slot.stepped = True
    assert slots.fetch_early([first])
    assert not slots.fetch_early([second])
    assert second.slot is None


@pytest.mark.parametrize("piece", [4, 1 << 20])
def test_another_state_follows_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_slots, "PIECE", piece)
    first, second = homes(2)
    slots = slots_of(1, first.layout.bytes)
    slots.fetch(first)
    first.arrival.wait()
    assert first.slot is not None
    first.slot.flat.fill_(7)
    slots.leave(first, computed(DEVICE))
    slots.fetch_early([second])
    assert value(second) == 1
    assert first.flat.tolist() == [7] * first.layout.bytes


def test_no_state_of_a_frozen_block_is_fetched_early() -> None:
    (frozen,) = homes(1, trained=False)
    assert slots_of(1, frozen.layout.bytes).fetch_early([frozen])
    assert frozen.slot is None


STEP = [("forward", 0), ("forward", 1), ("forward", 2)]
STEP += [("backward", 2), ("backward", 1), ("backward", 0)]


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        (1, []),  # in the forward, weights are needed
        (3, [2, 1]),
        (4, [1, 0]),
        (5, [0, 2]),
        (6, [2, 1]),  # of the next step
    ],
)
def test_the_next_updates_are_told_at_the_turns_and_in_the_backward(
    uses: int, expected: list[int]
) -> None:
    order = Order()
    assert order.updates(2) == []
    for use in [*STEP, *STEP, *STEP[:uses]]:
        order.note(use)  # type: ignore[arg-type]  # a kind is a str here
    assert order.updates(2) == expected
    assert order.updates(0) == []


def test_a_state_that_the_host_has_changed_is_copied_again() -> None:
    (home,) = homes(1)
    slots = slots_of(1, home.layout.bytes)
    slots.fetch(home)
    first = home.arrival
    slots.renew(home)
    assert home.arrival is first
    home.flat.add_(5)
    slots.renew(home)
    assert value(home) == 5


def test_a_state_that_has_left_is_not_copied_again() -> None:
    (home,) = homes(1)
    slots = slots_of(1, home.layout.bytes)
    slots.fetch(home)
    first = home.arrival
    first.wait()
    assert home.slot is not None
    home.slot.flat.fill_(7)
    slots.leave(home, computed(DEVICE)).finish()
    slots.renew(home)
    assert home.arrival is first
    assert (int(home.flat[0]), value(home)) == (7, 7)


def test_pieces_wait_for_a_state_that_leaves_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    (home,) = homes(1)
    slots = slots_of(1, home.layout.bytes)
    slots.fetch(home)
    home.arrival.wait()
    with monkeypatch.context() as whole:
        whole.setattr(state_slots, "region_of", lambda _: object())
        whole.setattr(state_slots, "PIECE", 4)
        ticket = slots.leave(home, computed(DEVICE))
    assert home.slot is not None
    assert [ticket] * -(-home.layout.bytes // 4) == home.slot.free
