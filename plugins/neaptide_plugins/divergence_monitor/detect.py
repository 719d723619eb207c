"""What is wrong with a course of losses and gradient norms, by looking at numbers alone.

Every course is oldest first and ends with the newest value, the one that is judged by those before
it. Values before it that are not finite are left out.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 8
"""Values before the newest one below which nothing is said."""

FLAT = 0.01
"""Least deviation, as a share of the mean: on a flat course rounding alone would be a spike."""

GROWTH = 2.0
"""How much wider the later half of an oscillation must be."""


def not_finite(values: Sequence[float]) -> bool:
    """Return whether the newest value is inf or nan; False where there is none."""
    return bool(values) and not math.isfinite(values[-1])


def rise(losses: Sequence[float]) -> float:
    """Return how many standard deviations the newest loss lies above the mean of those before it.

    0 where it cannot be said: fewer than `LEAST` before it, or the newest is not finite.
    """
    before = _before(losses)
    if before is None:
        return 0.0
    mean = _mean(before)
    deviation = math.sqrt(_mean([(loss - mean) * (loss - mean) for loss in before]))
    spread = max(deviation, FLAT * abs(mean))
    return (losses[-1] - mean) / spread if spread > 0.0 else 0.0


def exploded(norms: Sequence[float], multiplier: float) -> bool:
    """Return whether the newest gradient norm is over `multiplier` times the median before it."""
    before = _before(norms)
    if before is None or norms[-1] <= multiplier * min(before):  # the median is no smaller
        return False
    return norms[-1] > multiplier * median(before)


def vanished(norms: Sequence[float], share: float) -> bool:
    """Return whether the newest gradient norm is under `share` of the median before it."""
    before = _before(norms)
    if before is None or norms[-1] >= share * max(before):  # the median is no larger
        return False
    return norms[-1] < share * median(before)


def oscillates(losses: Sequence[float], share: float) -> bool:
    """Return whether the losses go up and down in turn, more and more widely.

    At least `share` of their differences change sign, and the later half of the differences is on
    average more than `GROWTH` times as large as the earlier half.
    """
    steps = [after - before for before, after in pairwise(_finite(losses))]
    if len(steps) < 2 * LEAST:
        return False
    half = len(steps) // 2
    earlier, later = (_mean([abs(step) for step in part]) for part in (steps[:half], steps[half:]))
    if later <= GROWTH * earlier:
        return False
    turns = sum(min(one, other) < 0.0 < max(one, other) for one, other in pairwise(steps))
    return turns >= share * (len(steps) - 1)


def _before(values: Sequence[float]) -> Sequence[float] | None:
    if not values or not math.isfinite(values[-1]):
        return None
    before = _finite(values[:-1])
    return before if len(before) >= LEAST else None


def _finite(values: Sequence[float]) -> Sequence[float]:
    # Nearly always all of them are, and asking takes a fraction of copying.
    return values if all(map(math.isfinite, values)) else list(filter(math.isfinite, values))


def _mean(values: Sequence[float]) -> float:
    # fmean raises OverflowError where a sum of floats becomes inf.
    return sum(values) / len(values)
