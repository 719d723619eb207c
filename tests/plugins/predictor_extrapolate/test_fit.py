"""Polynomials are continued exactly, noise is averaged, and constants are nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.predictor_extrapolate.fit import ahead, coefficients

ORDERS = st.sampled_from([1, 2])


def predicted(weights: list[float], steps: float, order: int) -> float:
    """Return the change that is proposed for one weight."""
    samples = len(weights)
    shares = [coefficients(index, samples, order) for index in range(samples)]
    rows = [sum(c[row] * w for c, w in zip(shares, weights, strict=True)) for row in range(order)]
    return sum(g * row for g, row in zip(ahead(samples, steps, order), rows, strict=True))


@given(ORDERS, st.integers(3, 30), st.floats(0.1, 20), st.lists(st.floats(-1, 1), min_size=3))
def test_a_polynomial_of_its_order_goes_on_exactly(
    order: int, samples: int, steps: float, factors: list[float]
) -> None:
    def at(time: float) -> float:
        return sum(factor * time**power for power, factor in enumerate(factors[: order + 1]))

    found = predicted([at(index) for index in range(samples)], steps, order)
    end = samples - 1
    assert pytest.approx(at(end + steps) - at(end), rel=1e-6, abs=1e-6) == found


@given(ORDERS, st.integers(3, 12), st.floats(0.1, 5), st.integers(0, 50))
def test_it_is_the_least_squares_fit(order: int, samples: int, steps: float, seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=samples)
    fit = np.polynomial.Polynomial.fit(range(samples), weights, order)
    expected = fit(samples - 1 + steps) - fit(samples - 1)
    found = predicted(weights.tolist(), steps, order)
    assert pytest.approx(expected, rel=1e-6, abs=1e-8) == found


@given(ORDERS, st.integers(3, 300))
def test_coefficients_add_up_to_zero(order: int, samples: int) -> None:
    for row in range(order):
        shares = [coefficients(index, samples, order)[row] for index in range(samples)]
        assert abs(sum(shares)) <= 1e-12 * max(map(abs, shares)) * samples


def test_two_samples_are_a_line_through_both() -> None:
    assert 6.0 == predicted([1.0, 3.0], 3.0, 1)
