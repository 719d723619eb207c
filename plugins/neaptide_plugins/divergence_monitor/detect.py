"""What is wrong with a course of losses and gradient norms, by looking at numbers alone."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 8
"""Values before the newest one below which nothing is said."""


def loss_spike(losses: Sequence[float], sigma: float) -> bool:
    """Return whether the newest loss lies over mean + `sigma` * deviation of those before it."""
    *before, newest = losses
    if len(before) < LEAST or not math.isfinite(newest):
        return False
    return newest > fmean(before) + sigma * max(pstdev(before), 1e-12)


def exploded(norms: Sequence[float], multiplier: float) -> bool:
    """Return whether the newest gradient norm is over `multiplier` times the median before it."""
    *before, newest = norms
    return len(before) >= LEAST and newest > multiplier * median(before)


def vanished(norms: Sequence[float], share: float) -> bool:
    """Return whether the newest gradient norm is under `share` of the median before it."""
    *before, newest = norms
    return len(before) >= LEAST and newest < share * median(before)


def oscillates(losses: Sequence[float], share: float) -> bool:
    """Return whether the losses go up and down in turn, more and more widely.

    At least `share` of their differences change sign, and the later half of the differences is on
    average more than twice as large as the earlier half.
    """
    steps = [after - before for before, after in pairwise(losses)]
    if len(steps) < 2 * LEAST:
        return False
    turns = sum(one * other < 0 for one, other in pairwise(steps))
    half = len(steps) // 2
    earlier = fmean(abs(step) for step in steps[:half])
    later = fmean(abs(step) for step in steps[half:])
    return turns >= share * (len(steps) - 1) and later > 2 * earlier
