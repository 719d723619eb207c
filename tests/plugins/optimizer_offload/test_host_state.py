"""State goes to host memory and comes back, whatever happens on the way."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import slow_lane
from support import DEVICE
from torch import nn

from neaptide_plugins.optimizer_offload.host_state import HostState
from neaptide_toolkit.offload import ThreadLane, lies_in_slab
from neaptide_toolkit.offload import evicted as module
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.tensors import nested_tensors
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neaptide import Span
    from neaptide_toolkit.offload import Ticket

pytestmark = pytest.mark.usefixtures("on_device")


class FailingLane(ThreadLane):
    """Fails at a copy."""

    def __init__(self, at: int) -> None:
        super().__init__("failing")
        self._left = at

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        def failing() -> None:
            self._left -= 1
            if not self._left:
                raise torch.OutOfMemoryError
            work()

        return super().submit(what, failing, after)


def trained(steps: int = 2, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for number in range(steps):
        step(model, optimizer, number)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(number)
    model(torch.randn(4, 24, generator=generator)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[ResidentStore, list[Span]]:
    store = ResidentStore(model, optimizer)
    return store, store.spans()


def tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return list(nested_tensors(dict(optimizer.state)))


def all_same(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(itertools.starmap(same_bits, pairs))


def test_it_is_readable_away_and_the_same_object_back() -> None:
    (model, optimizer), (_, plain) = trained(), trained()
    before = tensors_of(optimizer)
    host_state = HostState(DEVICE, pin=False)
    host_state.leave(*state_of(model, optimizer))
    large = [tensor for tensor in before if tensor.nbytes >= 1024]
    assert large
    assert all(map(lies_in_slab, large))
    assert all_same(plain, optimizer)
    host_state.finish()
    assert not any(map(lies_in_slab, before))
    assert all(itertools.starmap(lambda a, b: a is b, zip(before, tensors_of(optimizer), strict=1)))
    assert all_same(plain, optimizer)
    host_state.close()


def test_memory_that_is_shared_stays_shared() -> None:
    parameter = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([parameter])
    flat = torch.arange(2048.0)
    entry = {"row": flat[:1024], "odd": flat[1::2], "square": flat.view(32, 64).t()}
    optimizer.state[parameter] = entry
    del flat
    host_state = HostState(DEVICE, pin=False)
    host_state.leave(*state_of(nn.ParameterList([parameter]), optimizer))
    assert lies_in_slab(entry["row"])
    entry["row"][3] = -1.0
    assert -1.0 == entry["odd"][1] == entry["square"][3, 0]
    host_state.finish()
    entry["square"][5, 0] = -2.0
    assert -2.0 == entry["odd"][2] == entry["row"][5]
    assert -1.0 == entry["odd"][1]
    assert 1 == len({tensor.untyped_storage().data_ptr() for tensor in entry.values()})
    host_state.close()


def test_what_is_written_while_it_comes_back_is_kept() -> None:
    model, optimizer = trained()
    host_state = HostState(DEVICE, pin=False)
    host_state.leave(*state_of(model, optimizer))
    host_state.begin()
    moment = optimizer.state[model[0].weight]["exp_avg"]
    moment.fill_(7.0)
    host_state.finish()
    assert not lies_in_slab(moment)
    assert bool((moment == 7.0).all())
    host_state.close()


def test_other_memory_that_it_was_given_is_kept() -> None:
    model, optimizer = trained()
    host_state = HostState(DEVICE, pin=False)
    host_state.leave(*state_of(model, optimizer))
    moment = optimizer.state[model[0].weight]["exp_avg"]
    mine = torch.full_like(moment, 3.0, device="cpu")
    moment.data = mine
    host_state.finish()
    assert mine.data_ptr() == moment.data_ptr()
    host_state.close()


@pytest.mark.parametrize("at", [1, 2])
def test_a_copy_that_fails_can_be_tried_again(at: int) -> None:
    (model, optimizer), (same, plain) = trained(), trained()
    host_state = HostState(DEVICE, pin=False, lane=FailingLane(at))
    state = state_of(model, optimizer)
    with pytest.raises(torch.OutOfMemoryError):  # noqa: PT012 - which of them fails is the case
        host_state.leave(*state)
        host_state.finish()
    assert all_same(plain, optimizer)
    if not host_state.is_away:
        host_state.leave(*state)
    host_state.finish()
    step(model, optimizer, 9)
    step(same, plain, 9)
    assert all_same(plain, optimizer)
    host_state.close()


def test_leaving_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (model, optimizer), (_, plain) = trained(), trained()
    calls = itertools.count()

    def interrupted(tensor: Any, storage: Any, first: int) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        moved_in(tensor, storage, first)

    moved_in = module.moved_in
    monkeypatch.setattr(module, "moved_in", interrupted)
    host_state = HostState(DEVICE, pin=False)
    with pytest.raises(KeyboardInterrupt):
        host_state.leave(*state_of(model, optimizer))
    assert not host_state.is_away
    assert not any(map(lies_in_slab, tensors_of(optimizer)))
    assert all_same(plain, optimizer)


def test_what_an_interrupt_keeps_from_being_undone_comes_back_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (model, optimizer), (_, plain) = trained(), trained()
    calls = itertools.count()

    def interrupted(tensor: Any, storage: Any, first: int) -> None:
        if next(calls) >= 2:  # and again where it is undone
            raise KeyboardInterrupt
        moved_in(tensor, storage, first)

    moved_in = module.moved_in
    host_state = HostState(DEVICE, pin=False)
    with monkeypatch.context() as patch:
        patch.setattr(module, "moved_in", interrupted)
        with pytest.raises(KeyboardInterrupt):
            host_state.leave(*state_of(model, optimizer))
    assert host_state.is_away
    host_state.finish()
    host_state.close()
    assert not any(map(lies_in_slab, tensors_of(optimizer)))
    assert all_same(plain, optimizer)


def random_schedule(seed: int) -> None:
    rng = random.Random(seed)
    (model, optimizer), (same, plain) = trained(1), trained(1)
    host_state = HostState(DEVICE, pin=rng.random() < 0.5, lane=slow_lane(DEVICE, "slow"))
    hook = optimizer.register_step_pre_hook(lambda *_: host_state.finish())
    for number in range(12):
        for _ in range(rng.randrange(3)):
            what = rng.choice(("leave", "begin", "finish", "write", "read"))
            if what == "leave" and not host_state.is_away:
                host_state.leave(*state_of(model, optimizer))
            elif what == "write":
                for each, weight in ((optimizer, model[0].weight), (plain, same[0].weight)):
                    each.state[weight]["exp_avg"].mul_(0.5)
            elif what == "read":
                assert all_same(plain, optimizer)
            elif what != "leave":
                getattr(host_state, what)()
        step(model, optimizer, number)
        step(same, plain, number)
    host_state.finish()
    host_state.close()
    hook.remove()
    assert all_same(plain, optimizer)


@pytest.mark.parametrize("seed", range(40))
def test_random_schedules_on_slow_lanes(seed: int) -> None:
    random_schedule(seed)


@pytest.mark.slow
def test_a_thousand_random_schedules_on_slow_lanes() -> None:
    for seed in range(1000):
        random_schedule(seed)


def test_a_user_with_a_gradient_scaler() -> None:
    def run(host_state: HostState | None) -> list[torch.Tensor]:
        model, optimizer = trained()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
        if host_state is not None:
            optimizer.register_step_pre_hook(lambda *_: host_state.finish())
        for number in range(8):
            if host_state is not None and number % 3 == 2:
                host_state.leave(*state_of(model, optimizer))
                host_state.begin()
            generator = torch.Generator(DEVICE).manual_seed(number)
            loss = model(torch.randn(4, 24, generator=generator)).square().sum()
            if number in (2, 4):
                loss = loss * torch.inf  # an update that is skipped
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if host_state is not None:
            host_state.finish()
            host_state.close()
        return [*model.state_dict().values(), *tensors_of(optimizer)]

    pairs = zip(run(None), run(HostState(DEVICE, pin=False)), strict=True)
    assert all(itertools.starmap(same_bits, pairs))
