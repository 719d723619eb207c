"""A class of the user whose `step` calls that of a class of torch, on which torch runs hooks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from data_changes import WAYS, fitted, streamed
from law_loops import Habit, plain
from stepped_away import assert_same_state, train_both
from support import ROUNDS_OTHERWISE, same_tensors
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neaptide import ModelError
from neaptide_plugins.layer_streaming.updates.stepping import state_layout
from neaptide_toolkit.optimizer_state import expected_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

each_way = pytest.mark.parametrize("way", WAYS)
OTHERWISE = "AdamW steps on the CPU, which rounds otherwise than the device"
ON_DEVICE = ["device", "device, resident", "device, graph"]


class Shrinking(optim.AdamW):
    """Changes each weight before and after the step of AdamW, if it has a gradient."""

    separable = True

    def step(self, closure: Any = None) -> Any:
        self._shrink(0.9)
        loss = super().step(closure)
        self._shrink(0.8)
        return loss

    @torch.no_grad()
    def _shrink(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=factor * group["lr"])


class Passing(Shrinking):
    """Passes its options on, so that its signature does not name them."""

    separable = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Twice(optim.SGD):
    """Makes two steps of SGD."""

    separable = True

    def step(self, closure: Any = None) -> Any:
        super().step()
        return super().step(closure)


CLASSES: list[type[optim.Optimizer]] = [Shrinking, Passing, Twice]
each_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@pytest.fixture(autouse=True)
def hooked() -> None:
    """Let torch run hooks in the steps of these classes, as it does once one has been made."""
    for cls in (optim.AdamW, optim.SGD):
        cls([nn.Parameter(torch.ones(1))])
        assert vars(cls.step)["hooked"]  # set by torch


@pytest.fixture
def heard() -> Iterator[list[optim.Optimizer]]:
    """Return the optimizers of which a hook of all optimizers has heard."""
    optimizers: list[optim.Optimizer] = []

    def hear(optimizer: optim.Optimizer, *_: Any) -> None:
        optimizers.append(optimizer)

    hear.reads_gradients = False  # type: ignore[attr-defined]  # layer-streaming asks for it
    handle = register_optimizer_step_pre_hook(hear)
    yield optimizers
    handle.remove()


def habit_of(cls: Any, before: Callable[[Any], None] | None = None) -> Habit:
    return Habit(cls.__name__, optimizer=lambda ps: cls(ps, lr=0.05), before=before)


@each_class
@each_way
def test_a_step_that_calls_the_step_of_its_base_is_exact(
    cls: type[optim.Optimizer], way: str, tmp_path: Path
) -> None:
    if ROUNDS_OTHERWISE and WAYS[way]["optimizer_on"] == "cpu":
        pytest.skip(OTHERWISE)
    habit = habit_of(cls)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


@each_class
def test_it_steps_away_as_resident_parameters_do(cls: type[optim.Optimizer]) -> None:
    _, expected, away = train_both(cls, {})
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize("way", ON_DEVICE)
def test_a_hook_that_such_a_step_would_run_without_gradients_is_refused(
    way: str, tmp_path: Path
) -> None:
    def halve(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    def before(loop: Any) -> None:
        if loop.step == 1:
            loop.optimizer.register_step_pre_hook(halve)

    with pytest.raises(ModelError) as caught:
        streamed(habit_of(Shrinking, before), way, tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert "halve" in text
    assert "Shrinking" in text
    assert "optimizer_on = 'cpu'" in text


@pytest.mark.skipif(ROUNDS_OTHERWISE, reason=OTHERWISE)
def test_a_hook_of_such_a_step_is_exact_on_the_cpu(tmp_path: Path) -> None:
    def double(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(2.0)

    def before(loop: Any) -> None:
        if loop.step == 1:
            loop.optimizer.register_step_pre_hook(double)

    habit = habit_of(Shrinking, before)
    assert same_tensors(plain(habit).weights, streamed(habit, "cpu", tmp_path))


@each_way
def test_hooks_of_all_optimizers_hear_of_the_users_alone(
    way: str, heard: list[optim.Optimizer], tmp_path: Path
) -> None:
    made: list[optim.Optimizer] = []

    def make(parameters: Any) -> optim.Optimizer:
        made.append(Shrinking(parameters, lr=0.05))
        return made[-1]

    habit = Habit("heard", optimizer=make)
    plain(habit)
    expected = len(heard)
    heard.clear()
    streamed(habit, way, tmp_path)
    assert expected == len(heard)
    assert {id(made[-1])} == set(map(id, heard))


def test_what_a_step_would_make_is_found_without_a_hook(heard: list[optim.Optimizer]) -> None:
    parameter = nn.Parameter(torch.ones(3, 2))
    optimizer = Passing([parameter], amsgrad=True)
    names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert names == set(state_layout(optimizer, optimizer.param_groups[0], torch.float32))
    assert names < set(expected_state(optimizer)[parameter])
    assert not heard


def test_a_step_that_looks_like_that_of_torch_is_the_users_own() -> None:
    class Wrapping(optim.AdamW):
        separable = True

        @functools.wraps(optim.AdamW.step)  # copies the mark by which torch knows its wrapper
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # as is the user's
            Shrinking._shrink(self, 0.9)  # type: ignore[arg-type]  # has the groups, too
            return optim.AdamW.step(self, closure)

    _, expected, away = train_both(Wrapping, {})
    assert_same_state(expected, away.optimizer, away)
