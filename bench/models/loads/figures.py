"""How the figures of rounds are shown."""

from __future__ import annotations

import statistics


def shown(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, middle, high = (
        format(each, form) for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"
