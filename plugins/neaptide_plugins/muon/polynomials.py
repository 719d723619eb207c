"""Coefficients of the Newton-Schulz steps: those of Polar Express, or those of Jordan's Muon.

A step replaces each singular value x by `a x + b x^3 + c x^5`. Polar Express (Amsel et al., 2025,
https://arxiv.org/abs/2505.16932, section 4) gives each step the polynomial that comes nearest to
1 on the interval in which the step before leaves the singular values.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

JORDAN = (3.4445, -4.7750, 2.0315)
"""Every step of Muon by Jordan et al. (2024), and of `torch.optim.Muon`."""
POLYNOMIALS = ("polar-express", "jordan")
_WITHIN = 0.3
"""All steps together leave singular values in [1 - _WITHIN, 1 + _WITHIN]."""
_CUSHION = 1.01
"""A step is made for values up to this factor larger, because rounding may enlarge them."""
_LEAST = 1e-6
"""The smallest singular value for which steps are made; float32 does not know smaller ones."""
_ROUNDS, _NEAR, _SHORT = 60, 1e-12, 1e-3

Step = tuple[float, float, float]


@cache
def coefficients(polynomial: str, steps: int) -> tuple[Step, ...]:
    """Return `(a, b, c)` of each step.

    Args:
        polynomial: `"polar-express"` or `"jordan"`.
        steps: number of steps, from 1.
    """
    if polynomial == "jordan":
        return (JORDAN,) * steps
    low, high = math.log(_LEAST), 0.0
    if _schedule(steps, _LEAST)[1] > _WITHIN:
        # The smallest bound from which the steps lead that near to 1.
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            if _schedule(steps, math.exp(middle))[1] > _WITHIN:
                low = middle
            else:
                high = middle
    else:
        high = low
    return _schedule(steps, math.exp(high))[0]


def _schedule(steps: int, least: float) -> tuple[tuple[Step, ...], float]:
    """Return steps for singular values in [least, 1], and how far from 1 they leave them."""
    low, high, error = least, 1.0, 1.0 - least
    made = []
    for _ in range(steps):
        (a, b, c), error = _nearest(low, high * _CUSHION)
        made.append((a, b, c))
        low, high = 1 - error, 1 + error
    return tuple(made), error


def _nearest(low: float, high: float) -> tuple[Step, float]:
    """Return the odd quintic with the least largest distance from 1 on [low, high], and it.

    The Remez algorithm: the distance is largest, with alternating signs, at both ends and at the
    two places between them where the derivative is 0.
    """
    first, second = low + (high - low) / 4, low + 3 * (high - low) / 4
    step, error = (1.875, -1.25, 0.375), 0.0  # the limit of a short interval (Taylor's)
    if high - low < _SHORT:  # the equations would be singular
        return step, max(abs(1 - _value(step, x)) for x in (low, high))
    for _ in range(_ROUNDS):
        step, error = _equal_distance((low, first, second, high))
        a, b, c = step
        root = math.sqrt(9 * b * b - 20 * a * c)
        before = first, second
        first, second = (math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1))
        if max(abs(first - before[0]), abs(second - before[1])) < _NEAR:
            break
    return step, error


def _equal_distance(points: tuple[float, ...]) -> tuple[Step, float]:
    """Return the quintic that is as far below 1, above, below and above it at four points."""
    equations = [[x, x**3, x**5, (-1.0) ** place] for place, x in enumerate(points)]
    a, b, c, error = np.linalg.solve(np.array(equations), np.ones(4)).tolist()
    return (a, b, c), error


def _value(step: Step, x: float) -> float:
    a, b, c = step
    return a * x + b * x**3 + c * x**5
