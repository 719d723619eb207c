"""The prediction of a full window: coefficients of its rows, and a number of updates."""

from __future__ import annotations

import attrs

from neaptide.text import one_line


@attrs.frozen
class Gains:
    """A proposal is `sum_j values[j] * rows[j]`. It replaces `horizon` updates."""

    values: tuple[float, ...]
    horizon: int = attrs.field(validator=attrs.validators.gt(0))

    __repr__ = one_line


def reach(horizon: int, scale: float) -> float:
    """Return a jump's length in updates: `scale` times the horizon, in [1, horizon]."""
    return max(1.0, horizon * min(1.0, scale))
