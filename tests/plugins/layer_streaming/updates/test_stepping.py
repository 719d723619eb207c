from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch
from stepped_away import (
    CONFIGURATIONS,
    ELEMENTWISE,
    FUSED,
    Away,
    Options,
    assert_same_state,
    names,
    parameters_of,
    random_gradients,
    shapes_for,
    step_resident,
    train_both,
    two_groups,
)
from torch import nn, optim

from neaptide_kernels.adamw_split.split_master import split
from neaptide_plugins.layer_streaming.updates.stepping import ADOPTED, step_away
from neaptide_toolkit.testing.parting import same_bits


def test_every_adopted_class_is_tried() -> None:
    assert ADOPTED == {cls for cls, _ in CONFIGURATIONS}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("cls", "options"), ELEMENTWISE, ids=names)
def test_subsets_step_as_resident_parameters_do(
    cls: type[optim.Optimizer], options: Options, *, foreach: bool
) -> None:
    _, expected, away = train_both(cls, options | {"foreach": foreach})
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(("cls", "options"), CONFIGURATIONS, ids=names)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_class_steps_in_the_weights_dtype(
    cls: type[optim.Optimizer], options: Options, dtype: torch.dtype
) -> None:
    _, expected, away = train_both(cls, options, dtype)
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(("cls", "options"), FUSED, ids=names)
def test_fused_kernels_step_as_on_resident_parameters(
    cls: type[optim.Optimizer], options: Options
) -> None:
    _, expected, away = train_both(cls, options | {"fused": True})
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(
    "cls", [optim.SGD, optim.Adam, optim.AdamW, optim.Rprop, optim.RMSprop, optim.Adadelta]
)
def test_a_learning_rate_that_is_a_tensor_is_read_as_it_is(cls: type[optim.Optimizer]) -> None:
    def decay(_: int, *optimizers: optim.Optimizer) -> None:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"].mul_(0.9)

    train_both(cls, {"foreach": False}, lr=torch.tensor(0.05), between=decay)


@pytest.mark.parametrize("cls", sorted(ADOPTED, key=lambda cls: cls.__name__), ids=names)
def test_schedulers_reach_every_step(cls: type[optim.Optimizer]) -> None:
    schedulers: dict[int, Any] = {}

    def advance(_: int, *optimizers: optim.Optimizer) -> None:
        for optimizer in optimizers:
            if id(optimizer) not in schedulers:
                schedulers[id(optimizer)] = optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            optimizer._opt_called = True  # what a scheduler's own wrapper of `step` notes
            schedulers[id(optimizer)].step()

    _, expected, away = train_both(cls, {}, between=advance)
    rates = [group["lr"] for group in away.optimizer.param_groups]
    assert [group["lr"] for group in expected.param_groups] == rates
    assert math.isclose(0.05 * 0.8**20, rates[0])


@pytest.mark.parametrize(("cls", "options"), CONFIGURATIONS, ids=names)
def test_state_may_be_saved_and_loaded_between_steps(
    cls: type[optim.Optimizer], options: Options
) -> None:
    def exchange(step: int, expected: optim.Optimizer, actual: optim.Optimizer) -> None:
        if step % 3 == 0:  # each goes on from what the other saved
            saved = copy.deepcopy([expected.state_dict(), actual.state_dict()])
            assert saved[0]["param_groups"] == saved[1]["param_groups"]
            assert saved[0]["state"].keys() == saved[1]["state"].keys()
            expected.load_state_dict(saved[1])
            actual.load_state_dict(saved[0])
        elif step % 3 == 1:
            actual.load_state_dict(actual.state_dict())

    _, expected, away = train_both(cls, options, between=exchange)
    assert_same_state(expected, away.optimizer)


@pytest.mark.parametrize("foreach", [True, False])
def test_adamw_over_a_split_master_is_float32_adamw(*, foreach: bool) -> None:
    shapes = [(5, 7), (64,), ()]
    resident = parameters_of(shapes)
    expected = optim.AdamW(resident, lr=1e-2, weight_decay=0.1, foreach=foreach)
    moved = [nn.Parameter(p.detach().bfloat16()) for p in resident]
    actual = optim.AdamW(moved, lr=1e-2, weight_decay=0.1, foreach=foreach)
    away = Away(actual, moved, masters=[p.detach() for p in resident])
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        for optimizer in (expected, actual):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 + math.cos(step / 100)) / 2
        gradients = {
            i: torch.randn(p.shape, generator=generator).bfloat16() for i, p in enumerate(resident)
        }
        step_resident(expected, resident, {i: g.float() for i, g in gradients.items()})
        step_away(actual, [away.item(i, gradient) for i, gradient in gradients.items()])
        pairs = [split(p.detach()) for p in resident]
        assert all(map(same_bits, [hi for hi, _ in pairs], away.weights))
        assert all(map(same_bits, [lo for _, lo in pairs], away.lows))
    assert_same_state(expected, actual, away)
    assert torch.float32 == actual.state[moved[0]]["exp_avg"].dtype


@pytest.mark.parametrize(
    ("cls", "options"),
    [(cls, options) for cls, options in CONFIGURATIONS if "lr_decay" not in options],
    ids=names,
)
def test_every_class_steps_a_split_master(cls: type[optim.Optimizer], options: Options) -> None:
    ours: Any = cls
    resident = parameters_of(shapes_for(cls))
    expected = ours(two_groups(resident), **options)
    moved = [nn.Parameter(p.detach().bfloat16()) for p in resident]
    away = Away(ours(two_groups(moved), **options), moved, [p.detach() for p in resident])
    dice, pieces, generator = random.Random(1), random.Random(2), torch.Generator().manual_seed(3)
    for _ in range(10):
        gradients = random_gradients(resident, dice, generator)
        step_resident(expected, resident, gradients)
        away.step(gradients, pieces)
    pairs = [split(p.detach()) for p in resident]
    assert all(map(same_bits, [hi for hi, _ in pairs], away.weights))
    assert all(map(same_bits, [lo for _, lo in pairs], away.lows))
