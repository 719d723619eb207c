"""Least-squares polynomials through equally spaced samples, as coefficients of the samples.

In orthogonal polynomials, so that a line is fitted the same beside a parabola: with time u in
samples from the middle of the window, `p(u) = mean + slope * u + bend * (u**2 - mean of u**2)`.
"""

from __future__ import annotations


def coefficients(index: int, samples: int, order: int) -> tuple[float, ...]:
    """Return what sample `index` adds to the slope and, of order 2, to the bend."""
    u = index - (samples - 1) / 2
    squares = samples * (samples**2 - 1) / 12
    slope = u / squares
    if order == 1:
        return (slope,)
    spread = squares / samples
    fourth = squares * (samples**2 - 4) / 15  # sum of (u**2 - spread)**2
    return (slope, (u * u - spread) / fourth)


def ahead(samples: int, steps: float, order: int) -> tuple[float, ...]:
    """Return what slope and bend are multiplied by in `p(end + steps) - p(end)`."""
    if order == 1:
        return (steps,)
    end = (samples - 1) / 2
    return (steps, 2 * end * steps + steps * steps)
