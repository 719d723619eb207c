"""Copies on lanes: what they wait for, and what is left of them when one fails or all is over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import WAYS, Sleepy, assert_idle, batch_of, blocks_of, optimizer_of
from zoo_blocks import linear, stacked

from neaptide_plugins.layer_streaming import streaming
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_plugins.layer_streaming.updates import blockwise
from neaptide_plugins.layer_streaming.weights import residency
from neaptide_toolkit.offload import ThreadLane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from neaptide_toolkit.offload import Ticket

PLAIN = stacked(linear)
CPU = torch.device("cpu")


def streamed(lanes: Callable[[torch.device, str], Any] | None = None, **settings: Any) -> Streaming:
    torch.manual_seed(0)
    model = PLAIN()
    chosen = StreamingSettings(**{"poison": True, **settings})
    made = lanes or (lambda _, name: Sleepy(name))
    return Streaming(model, blocks_of(model), optimizer_of(model), CPU, chosen, lanes=made)


def neaptide_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("neaptide-")}


class Gated(ThreadLane):
    """Copies once it is let."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gate = threading.Event()
        self.tickets: list[Any] = []

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        def later() -> None:
            assert self.gate.wait(60)
            work()

        self.tickets.append(super().submit(what, later, after))
        return self.tickets[-1]


def test_a_kept_place_is_given_up_once_the_copy_into_it_is_over() -> None:
    lane = Gated("gated")
    one = streamed(lambda _, name: lane if name == "to device" else Sleepy(name))
    block = one.blocks[1]
    one.residency.keep(block)
    arrival: Future[None] = lane.tickets[-1]._future
    threading.Timer(0.05, lane.gate.set).start()
    one.residency.let_go(block)
    assert arrival.done()
    one.close()


def test_lanes_wait_for_what_is_computed_in_memory_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An allocator gives a stream's freed memory to it again at once, and lanes are others."""
    waited: dict[str, bool] = {}

    class Computed:
        def wait(self) -> None:
            """Return at once: a CPU computes in order."""

        finish = wait

    class Asking(ThreadLane):
        written: set[Ticket] = set()  # noqa: RUF012 - of both lanes

        def submit(
            self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
        ) -> Ticket:
            tickets = list(after)
            if what.startswith("fetch") and "state" not in what:  # state comes after weights
                waited[what] = waited.get(what, True) and any(
                    isinstance(ticket, Computed) or ticket in self.written for ticket in tickets
                )
            ticket = super().submit(what, work, tickets)
            if what.startswith("write back"):
                self.written.add(ticket)
            return ticket

    def computed(_: torch.device) -> Computed:
        return Computed()

    monkeypatch.setattr(residency, "computed", computed)
    monkeypatch.setattr(blockwise, "computed", computed)
    one = streamed(lambda _, name: Asking(name), on_device=True, resident=1, poison=False)
    x = torch.zeros(1, 8)
    for block in one.blocks:
        x = block.module(x)
    x.sum().backward()
    one.gradients.flush()
    one.step()
    assert {f"fetch {block.name}" for block in one.blocks} <= waited.keys()
    assert [] == [what for what, did in waited.items() if not did and "gradients" not in what]
    one.close()


@pytest.mark.parametrize("where", ["Updates", "Gradients", "Recomputed"])
def test_what_fails_half_way_leaves_no_lane_and_no_patch(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        message = "no memory"
        raise MemoryError(message)

    before = neaptide_threads()
    torch.manual_seed(0)
    model = PLAIN()
    expected = model(batch_of(0).to(CPU))
    lanes: list[Gated] = []

    def make(_: torch.device, name: str) -> Gated:
        lanes.append(Gated(name))
        lanes[-1].gate.set()
        return lanes[-1]

    monkeypatch.setattr(streaming, where, failing)
    chosen = StreamingSettings(on_device=True, resident=2)
    optimizer = optimizer_of(model)
    with pytest.raises(MemoryError) as caught:
        Streaming(model, blocks_of(model), optimizer, CPU, chosen, lanes=make)
    assert all(ticket._future.done() for lane in lanes for ticket in lane.tickets)
    assert all(lane._pool._shutdown for lane in lanes)
    assert before == neaptide_threads()
    assert "no memory" in str(caught.value)
    assert torch.equal(expected, model(batch_of(0).to(CPU)))
    monkeypatch.undo()
    again = Streaming(model, blocks_of(model), optimizer, CPU, chosen)
    assert torch.equal(expected, model(batch_of(0).to(CPU)))
    again.close()


class Failing(ThreadLane):
    """Its copies fail from some time on, as those of a lost device do."""

    broken = False

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        def perhaps() -> None:
            if self.broken:
                message = "the device is lost"
                raise RuntimeError(message)
            work()

        return super().submit(what, perhaps, after)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_that_fails_is_told_and_lanes_are_closed_all_the_same(way: str) -> None:
    lanes: list[Failing] = []

    def make(_: torch.device, name: str) -> Failing:
        lanes.append(Failing(name))
        return lanes[-1]

    one = streamed(make, **WAYS[way])
    model = [block.module for block in one.blocks]
    for lane in lanes:
        lane.broken = True

    def step() -> None:
        x = torch.zeros(1, 8)
        for block in model:
            x = block(x)
        x.sum().backward()
        one.gradients.flush()
        one.step()
        one.settle()

    with pytest.raises(RuntimeError, match="the device is lost"):
        step()
    assert {0} == {block.users for block in one.blocks}
    with pytest.raises(RuntimeError, match="the device is lost"):
        one.close()
    assert all(lane._pool._shutdown for lane in lanes)
    assert all("forward" not in vars(module) for module in model)


@pytest.mark.parametrize("way", WAYS)
def test_closing_twice(way: str) -> None:
    one = streamed(**WAYS[way], resident=1)
    one.close()
    one.close()
    assert_idle(one)
