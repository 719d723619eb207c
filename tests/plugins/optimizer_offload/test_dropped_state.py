"""State that is forgotten: the next update is the first one of a new optimizer."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from offloaded import state_of
from optimizers_of_torch import OPTIMIZERS
from support import DEVICE, REAL_GPU
from torch import nn

from neaptide_plugins.optimizer_offload.dropped_state import DroppedState
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")


def gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for each in parameters:
        each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(16, 24).to(dtype)) for _ in range(2)]


def updates(parameters: list[nn.Parameter], optimizer: Any, first: int) -> None:
    for number in range(3):
        gradients(parameters, first + number)
        optimizer.step()


def fresh_after_drop(make: Any, dtype: torch.dtype = torch.float32) -> None:
    ours = weights(dtype)
    optimizer = make(ours)
    dropped = DroppedState(*state_of(optimizer, ours))
    for round_ in range(2):
        updates(ours, optimizer, 10 * round_)
        dropped.leave(*state_of(optimizer, ours))
        theirs = [nn.Parameter(each.detach().clone()) for each in ours]
        dropped.finish()
        assert not dropped.is_away
    updates(ours, optimizer, 50)
    updates(theirs, make(theirs), 50)
    assert all(itertools.starmap(same_bits, zip(ours, theirs, strict=True)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_a_new_optimizer(name: str) -> None:
    if REAL_GPU and name == "Adagrad-fused":
        pytest.skip("torch 2.11 has no fused Adagrad for a GPU")
    fresh_after_drop(OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["Adam", "Adagrad-initial", "RMSprop-all", "NAdam"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_in_other_dtypes(name: str, dtype: torch.dtype) -> None:
    fresh_after_drop(OPTIMIZERS[name], dtype)


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_sparse_gradients() -> None:
    weight = nn.Parameter(torch.randn(100, 8))
    optimizer = torch.optim.SparseAdam([weight])
    dropped = DroppedState(*state_of(optimizer, [weight]))
    weight.grad = torch.ones(100, 8).to_sparse(1)
    optimizer.step()
    dropped.leave(*state_of(optimizer, [weight]))
    assert weight not in optimizer.state


class Stranger(torch.optim.Optimizer):
    """Momentum, written in one of the ways of strangers."""

    def __init__(self, params: Any, way: str = "lazy", lr: Any = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.way, self.taken, self.flat = way, 0, torch.zeros(3)
        if way in ("eager", "uneven"):
            for group in self.param_groups:
                for each in group["params"]:
                    moment = torch.full_like(each, 0.5)
                    if way == "uneven":
                        moment.view(-1)[0] = 0.25
                    self.state[each] = {"m": moment, "count": 0, "names": ["a", None]}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as strangers do
        if self.way == "attribute":
            self.taken += 1
        if self.way == "global":
            self.state["global"]["steps"] = self.state["global"].get("steps", 0) + 1  # type: ignore[index]  # as above
        for group in self.param_groups:
            if self.way == "group":
                group["t"] = group.get("t", 0) + 1
            if self.way == "tensor-count":
                group.setdefault("t", torch.zeros(())).add_(1)
            for each in group["params"]:
                state = self.state[each]
                if self.way not in ("eager", "uneven"):
                    state.setdefault("m", torch.zeros_like(each))
                if self.way in ("eager", "uneven"):
                    state["count"] += 1
                correction = 1 - 0.9 ** float(group.get("t", state.get("count", 1)))
                state["m"].mul_(0.9).add_(each.grad)
                each.sub_(group["lr"] * state["m"] / correction)


@pytest.mark.parametrize("way", ["lazy", "eager", "uneven", "group", "tensor-count"])
def test_a_strangers_optimizer_begins_anew(way: str) -> None:
    fresh_after_drop(lambda parameters: Stranger(parameters, way))


@pytest.mark.parametrize("way", ["attribute", "global"])
def test_what_counts_where_nobody_can_reset_it_is_refused(way: str) -> None:
    parameters = weights()
    with pytest.raises(ValueError, match="cannot step after its state was dropped") as refused:
        DroppedState(*state_of(Stranger(parameters, way), parameters))
    assert 1 == len(str(refused.value).splitlines())


def test_a_count_of_more_than_is_forgotten_is_refused() -> None:
    parameters = weights()
    with pytest.raises(ValueError, match="counts steps in 't' of parameter group 0"):
        DroppedState(*state_of(Stranger(parameters, "group"), parameters[:1]))
    DroppedState(*state_of(Stranger(parameters, "lazy"), parameters[:1]))


def test_one_that_has_lost_what_it_made_first_is_refused() -> None:
    parameters = weights()
    optimizer = Stranger(parameters, "eager")
    optimizer.state.clear()
    with pytest.raises(ValueError, match="Stranger cannot step after its state was dropped"):
        DroppedState(*state_of(optimizer, parameters))


def test_the_trial_leaves_the_optimizer_and_its_surroundings_alone() -> None:
    parameters = weights()
    optimizer = Stranger(parameters, "lazy")
    heard: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("stepped"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = [each.detach().clone() for each in parameters]
    random_state = torch.get_rng_state()
    DroppedState(*state_of(optimizer, parameters))
    assert [] == heard
    assert {} == dict(optimizer.state)
    assert 0 == optimizer.taken
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(itertools.starmap(torch.equal, zip(before, parameters, strict=True)))
    assert 1 == schedule._step_count


def test_rates_of_schedules_go_on() -> None:
    parameters = weights()
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    dropped = DroppedState(*state_of(optimizer, parameters))
    updates(parameters, optimizer, 0)
    schedule.step()
    dropped.leave(*state_of(optimizer, parameters))
    dropped.finish()
    assert 0.05 == optimizer.param_groups[0]["lr"]


def test_entries_of_others_stay() -> None:
    parameters = weights()
    optimizer = torch.optim.Adam(parameters)
    dropped = DroppedState(*state_of(optimizer, parameters[:1]))
    updates(parameters, optimizer, 0)
    optimizer.state["notes"] = {"text": "mine"}  # type: ignore[index]  # as strangers do
    dropped.leave(*state_of(optimizer, parameters[:1]))
    dropped.finish()
    assert parameters[0] not in optimizer.state
    assert 3 == float(optimizer.state[parameters[1]]["step"])
    assert {"text": "mine"} == optimizer.state["notes"]  # type: ignore[index]  # as above
