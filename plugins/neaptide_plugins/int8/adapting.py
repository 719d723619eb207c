"""What a loss gap is, and which weights pay for one that is too large."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def relative_gap(full: float, quantized: float) -> float:
    """Return how much greater the loss of quantized weights is, over the full ones' magnitude.

    Infinite where one of the two is not a number.
    """
    if not (math.isfinite(full) and math.isfinite(quantized)):
        return math.inf
    return (quantized - full) / max(abs(full), 1e-12)


def worst_quarter(errors: Mapping[str, float]) -> list[str]:
    """Return the names with the largest errors, a quarter of all and at least one.

    NaN is the largest. Ties go by name.
    """
    ordered = sorted(errors, key=lambda name: (_rank(errors[name]), name), reverse=True)
    return ordered[: max(1, len(ordered) // 4)]


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
