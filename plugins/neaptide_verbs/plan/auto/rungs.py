"""The last of many rungs that fits, by few trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def largest(
    count: int, fits: Callable[[int], bool], guess: int, step: int = 1, low: int = -1
) -> int:
    """Return the last rung that fits; -1 if none does. The rung above it was tried, too.

    Args:
        count: of rungs.
        fits: whether a rung fits. Above one that does not, none does.
        guess: the first rung that is tried.
        step: rungs to the next one; it doubles until one fits and one does not.
        low: a rung that is known to fit; -1 if none is known.
    """
    high, at = count, min(max(guess, low + 1), count - 1)
    while high - low > 1:
        if fits(at):
            low = at
        else:
            high = at
        if high == count:
            at, step = min(low + step, count - 1), 2 * step
        elif low < 0:
            at, step = max(high - step, 0), 2 * step
        else:
            at = (low + high) // 2
    return low
