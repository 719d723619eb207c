"""Fits polynomials to equally spaced samples by least squares.

The slope and the bend of a fit are weighted sums of the samples. This module computes the
coefficients of these sums.
The time `u` is counted in samples from the middle of the window. The polynomial is `p(u) = mean +
slope * u + bend * (u**2 - mean of u**2)`. The basis of the polynomial is orthogonal, so a line and
a parabola that are fitted to the same samples have the same slope.
"""

from __future__ import annotations


def coefficients(index: int, samples: int, order: int) -> tuple[float, ...]:
    """Return the coefficient of sample `index` in the slope and, for order 2, in the bend."""
    u = index - (samples - 1) / 2
    squares = samples * (samples**2 - 1) / 12
    slope = u / squares
    if order == 1:
        return (slope,)
    spread = squares / samples
    fourth = squares * (samples**2 - 4) / 15  # sum of (u**2 - spread)**2
    return (slope, (u * u - spread) / fourth)


def ahead(samples: int, steps: float, order: int) -> tuple[float, ...]:
    """Return the factors by which slope and bend are multiplied in `p(end + steps) - p(end)`.

    With order 1 there is no factor for the bend.
    """
    if order == 1:
        return (steps,)
    end = (samples - 1) / 2
    return (steps, 2 * end * steps + steps * steps)
