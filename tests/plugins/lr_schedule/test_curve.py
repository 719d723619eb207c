"""Closed forms: their laws, and torch's own schedulers beside them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from neaptide_plugins.lr_schedule.config import LrScheduleConfig
from neaptide_plugins.lr_schedule.curve import Curve, updates_of
from neaptide_plugins.lr_schedule.lengths import curve_of


@st.composite
def curves(draw: st.DrawFn, *names: str) -> Curve:
    name: Any = draw(st.sampled_from(names or ("constant", "linear", "cosine", "wsd")))
    steps = draw(st.integers(1, 200))
    warmup = draw(st.integers(0, steps - 1))
    decay = draw(st.integers(1, steps - warmup)) if name == "wsd" else 0
    floor = draw(st.floats(0.0, 1.0))
    return Curve(name=name, steps=steps, warmup=warmup, decay=decay, floor=floor)


@given(curves(), st.integers(0, 400))
def test_a_factor_is_between_zero_and_one(curve: Curve, updates: int) -> None:
    assert 0.0 < curve.factor(0) <= 1.0
    assert 0.0 <= curve.factor(updates) <= 1.0


@given(curves())
def test_the_warmup_rises_evenly_to_the_peak(curve: Curve) -> None:
    factors = [curve.factor(update) for update in range(curve.warmup + 1)]
    assert [(place + 1) / (curve.warmup + 1) for place in range(curve.warmup)] == factors[:-1]
    assert 1.0 == factors[-1]


@given(curves("linear", "cosine", "wsd"))
def test_after_the_warmup_the_rate_never_rises_and_ends_at_the_floor(curve: Curve) -> None:
    factors = [curve.factor(update) for update in range(curve.warmup, curve.steps + 20)]
    assert sorted(factors, reverse=True) == factors
    assert {curve.floor} == set(factors[curve.steps - curve.warmup :])


@given(curves("wsd"))
def test_wsd_stays_at_the_peak_until_its_decay(curve: Curve) -> None:
    stable = [curve.factor(update) for update in range(curve.warmup, curve.steps)]
    assert {1.0} == set(stable[: curve.steps - curve.decay - curve.warmup + 1])
    if curve.floor < 0.999:
        assert all(curve.factor(curve.steps - left) < 1.0 for left in range(curve.decay))


@pytest.mark.parametrize(
    ("curve", "factors"),
    [
        (
            Curve(name="linear", steps=7, warmup=3),
            [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0],
        ),
        (Curve(name="linear", steps=3), [1.0, 1.0 - 1 / 3, 1.0 - 2 / 3, 0.0]),
        (Curve(name="constant", steps=5, warmup=1), [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (
            Curve(name="cosine", steps=6, warmup=2),
            [
                1 / 3,
                2 / 3,
                1.0,
                0.5 * (1.0 - math.cos(math.pi * 0.75)),
                0.5 * (1.0 - math.cos(math.pi * 0.5)),
                0.5 * (1.0 - math.cos(math.pi * 0.25)),
                0.0,
            ],
        ),
        (Curve(name="linear", steps=4, floor=0.5), [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]),
    ],
    ids=str,
)
def test_the_factors_are_those_written_by_hand(curve: Curve, factors: list[float]) -> None:
    assert factors == [curve.factor(update) for update in range(len(factors))]
    assert factors[-1] == curve.factor(10_000)


@given(curves("constant", "linear", "cosine", "wsd"))
def test_the_schedulers_of_torch_put_together_have_the_same_rates(curve: Curve) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    begin = curve.steps - curve.decay if curve.name == "wsd" else curve.warmup
    length = max(1, curve.steps - begin)
    end: Any = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, length, 0.5 * curve.floor),
    }.get(
        curve.name, lambda: lr_scheduler.LinearLR(optimizer, 1.0, curve.floor, total_iters=length)
    )
    parts: list[Any] = [end()]
    if begin > curve.warmup:
        parts.insert(0, lr_scheduler.ConstantLR(optimizer, 1.0))
    if curve.warmup:
        first = lr_scheduler.LinearLR(optimizer, 1 / (curve.warmup + 1), 1.0, curve.warmup)
        parts.insert(0, first)
    borders = [curve.warmup] * bool(curve.warmup) + [begin] * (begin > curve.warmup)
    scheduler: Any = lr_scheduler.SequentialLR(optimizer, parts, borders)
    optimizer.step()
    for update in range(curve.steps):
        rate = optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.5 * curve.factor(update), rel=1e-9, abs=1e-9)
        scheduler.step()


@pytest.mark.parametrize(
    ("given", "updates"), [(0, 0), (0.1, 20), (0.999, 200), (1, 1), (30.0, 30), (500, 500)]
)
def test_a_number_below_one_is_a_share(given: float, updates: int) -> None:
    assert updates == updates_of(given, 200)


@given(st.floats(0.0, 0.99), st.floats(0.01, 1.0), st.integers(1, 300))
def test_shares_that_are_at_most_the_whole_fit_into_any_run(
    warmup: float, decay: float, steps: int
) -> None:
    decay = min(decay, 1.0 - warmup)
    curve = curve_of(LrScheduleConfig(name="wsd", warmup=warmup, decay=decay), steps)
    assert curve.warmup + curve.decay <= steps
    assert 0.0 < curve.factor(0) <= 1.0
    assert 0.0 == curve.factor(steps) or curve.decay == 0
