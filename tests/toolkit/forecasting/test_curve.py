from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.lr_schedule.curve import Curve
from neaptide_toolkit.forecasting.curve import STIFFNESS, LossCurve, LossLevel, learning

LOSSES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)


@given(LOSSES, st.floats(0.0, 8.0))
def test_a_curve_is_the_weighted_least_squares_line(losses: list[float], power: float) -> None:
    curve = LossCurve(power)
    places = [math.log(30.0 + place) for place in range(len(losses))]
    for x, loss in zip(places, losses, strict=True):
        curve.take(x, loss)
    count = len(losses)
    weights = [((place + 1) / count) ** power for place in range(count)]
    whole = math.fsum(weights)
    x = math.fsum(w * p for w, p in zip(weights, places, strict=True)) / whole
    y = math.fsum(w * loss for w, loss in zip(weights, losses, strict=True)) / whole
    xx = math.fsum(w * (p - x) ** 2 for w, p in zip(weights, places, strict=True))
    xy = math.fsum(
        w * (p - x) * (loss - y) for w, p, loss in zip(weights, places, losses, strict=True)
    )
    assert pytest.approx(xy / (xx + STIFFNESS), rel=1e-6, abs=1e-6) == curve.slope
    assert pytest.approx(y, rel=1e-6, abs=1e-6) == curve.at(x)


@given(LOSSES, st.floats(0.0, 0.99))
def test_a_level_is_the_exponential_average(losses: list[float], decay: float) -> None:
    level = LossLevel(decay)
    for loss in losses:
        level.take(loss)
    weights = [decay**age for age in reversed(range(len(losses)))]
    mean = math.fsum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
    assert pytest.approx(mean, rel=1e-9, abs=1e-9) == level.now
    assert level.unit >= abs(level.now)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("done", "ahead"), [(60, 200), (700, 50), (980, 200), (3, 5), (9, 0)])
def test_learning_is_the_sum_of_the_schedule(name: str, done: int, ahead: int) -> None:
    factor = Curve(name=name, steps=1000, warmup=20).factor  # type: ignore[arg-type]  # a literal
    exact = sum(factor(update) for update in range(done, done + ahead))
    assert pytest.approx(exact, rel=0.03, abs=0.05) == learning(factor, done, ahead)
