"""Polynomials of the steps: the nearest to 1, and where they leave singular values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from neaptide_plugins.muon.polynomials import coefficients

if TYPE_CHECKING:
    from neaptide_plugins.muon.polynomials import Step

GRID = np.geomspace(1e-7, 1.0, 100_001)


def applied(steps: tuple[Step, ...], values: np.ndarray) -> np.ndarray:
    for a, b, c in steps:
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("steps", range(1, 9))
def test_values_end_within_three_tenths_of_one(steps: int) -> None:
    found = applied(coefficients("polar-express", steps), GRID)
    near = np.abs(found - 1) <= 0.3 + 1e-6
    least = GRID[~near].max()
    assert bool((near == (least < GRID)).all())  # one interval, up to 1
    # Each step multiplies small values by up to 4.2: the interval begins that much earlier.
    assert least < 0.16 * 0.25 ** (steps - 1)
    assert found.max() <= 1.3 + 1e-6


def test_values_that_rounding_enlarged_end_near_one() -> None:
    for steps in range(1, 9):
        found = applied(coefficients("polar-express", steps), np.array([1.005]))
        assert abs(found - 1) <= 0.3 + 1e-6


def test_no_other_quintic_is_nearer() -> None:
    """The distance from 1 is largest at four places, with alternating signs (Chebyshev)."""
    ((a, b, c),) = coefficients("polar-express", 1)
    values = np.linspace(0.158, 1.01, 100_001)
    distance = a * values + b * values**3 + c * values**5 - 1
    inner = [
        float(distance[place])
        for place in range(1, len(distance) - 1)
        if (distance[place] - distance[place - 1]) * (distance[place + 1] - distance[place]) < 0
    ]
    assert [0.3, -0.3] == pytest.approx(inner, abs=1e-3)
    assert [-0.3, 0.3] == pytest.approx([distance[0], distance[-1]], abs=5e-3)


def test_many_steps_leave_every_value_of_float32_near_one() -> None:
    found = applied(coefficients("polar-express", 20), GRID[GRID >= 1e-6])
    assert np.abs(found - 1).max() < 0.02


def test_of_jordan_all_steps_are_alike() -> None:
    steps = coefficients("jordan", 5)
    assert {(3.4445, -4.775, 2.0315)} == {*steps}
    assert math.isclose(485, math.prod(a for a, _, _ in steps), rel_tol=1e-3)
