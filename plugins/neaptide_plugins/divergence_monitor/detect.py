"""Functions that find signs of divergence in sequences of losses and gradient norms.

Every sequence is ordered from oldest to newest. The newest value is compared with the earlier
values. Earlier values that are not finite are ignored.
"""

from __future__ import annotations

import math
from itertools import pairwise
from operator import mul, sub
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 8
"""Least number of earlier values that are needed for a finding (a sign of divergence)."""

FLAT = 0.01
"""Least standard deviation, divided by the mean. Without this limit, a rounding error would count
as a spike among equal losses."""

GROWTH = 2.0
"""Least ratio in an oscillation: mean change in the later half / mean change in the earlier half.
"""


def not_finite(values: Sequence[float]) -> bool:
    """Return whether the newest value is inf or NaN; False for an empty sequence."""
    return bool(values) and not math.isfinite(values[-1])


def rise(losses: Sequence[float]) -> float:
    """Return how many standard deviations the newest loss is above the mean of earlier losses.

    Return 0 if there are fewer than `LEAST` earlier losses, or if the newest loss is not finite.
    """
    before = _before(losses)
    if before is None:
        return 0.0
    mean = _mean(before)
    apart = [loss - mean for loss in before]
    deviation = math.sqrt(sum(map(mul, apart, apart)) / len(apart))
    spread = max(deviation, FLAT * abs(mean))
    return (losses[-1] - mean) / spread if spread > 0.0 else 0.0


def exploded(norms: Sequence[float], multiplier: float) -> bool:
    """Return whether the newest norm is above `multiplier` times the median of earlier norms."""
    before = _before(norms)
    if before is None or norms[-1] <= multiplier * min(before):  # median >= min
        return False
    return norms[-1] > multiplier * median(before)


def vanished(norms: Sequence[float], share: float) -> bool:
    """Return whether the newest norm is below `share` times the median of earlier norms."""
    before = _before(norms)
    if before is None or norms[-1] >= share * max(before):  # median <= max
        return False
    return norms[-1] < share * median(before)


def oscillates(losses: Sequence[float], share: float) -> bool:
    """Return whether the losses alternate up and down with growing amplitude.

    The function checks two conditions on the differences between successive losses. First, at
    least the share `share` of all pairs of successive differences has opposite signs. Second, the
    mean magnitude of the later half of the differences is more than `GROWTH` times the mean
    magnitude of the earlier half.
    """
    values = _finite(losses)
    steps: list[float] = list(map(sub, values[1:], values))
    if len(steps) < 2 * LEAST:
        return False
    sizes, half = list(map(abs, steps)), len(steps) // 2
    if _mean(sizes[half:]) <= GROWTH * _mean(sizes[:half]):
        return False
    turns = sum(min(one, other) < 0.0 < max(one, other) for one, other in pairwise(steps))
    return turns >= share * (len(steps) - 1)


def _before(values: Sequence[float]) -> Sequence[float] | None:
    if not values or not math.isfinite(values[-1]):
        return None
    before = _finite(values[:-1])
    return before if len(before) >= LEAST else None


def _finite(values: Sequence[float]) -> Sequence[float]:
    # Nearly always all values are finite, and so is their sum: much cheaper than a copy.
    return values if math.isfinite(sum(values)) else list(filter(math.isfinite, values))


def _mean(values: Sequence[float]) -> float:
    # fmean is not used, because it raises OverflowError if the sum becomes inf.
    return sum(values) / len(values)
