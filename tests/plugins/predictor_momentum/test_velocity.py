"""The coefficients are an average of differences: exact on lines, an EMA elsewhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.predictor_momentum.velocity import coefficient

DECAYS = st.floats(0.0, 0.99)


def velocity(weights: list[float], decay: float) -> float:
    samples = len(weights)
    return sum(coefficient(index, samples, decay) * w for index, w in enumerate(weights))


@given(DECAYS, st.lists(st.floats(-1, 1), min_size=2, max_size=40))
def test_it_is_a_moving_average_without_the_bias_of_its_beginning(
    decay: float, weights: list[float]
) -> None:
    average = total = 0.0
    for before, after in itertools.pairwise(weights):
        average = decay * average + (1 - decay) * (after - before)
        total = decay * total + (1 - decay)
    assert pytest.approx(average / total, rel=1e-6, abs=1e-9) == velocity(weights, decay)


@given(DECAYS, st.integers(2, 40), st.floats(-1, 1), st.floats(-5, 5))
def test_a_line_has_one_velocity(decay: float, samples: int, slope: float, start: float) -> None:
    weights = [start + slope * index for index in range(samples)]
    assert pytest.approx(slope, rel=1e-6, abs=1e-9) == velocity(weights, decay)


@given(DECAYS, st.integers(2, 300))
def test_coefficients_add_up_to_zero(decay: float, samples: int) -> None:
    assert abs(sum(coefficient(index, samples, decay) for index in range(samples))) < 1e-12
