"""Closed forms of learning rates. Knows nothing of Neaptide, and needs no torch."""

from __future__ import annotations

import math
from typing import Literal

import attrs


@attrs.frozen(kw_only=True)
class Curve:
    """A linear warmup; then a constant rate, or a decay to `floor` that ends at update `steps`.

    The rate is `factor(updates)` times the peak rate. `linear` and `cosine` decay after the warmup.
    `wsd` (warmup, stable, decay) stays at the peak; it decays linearly in the last `decay` updates.
    """

    name: Literal["constant", "linear", "cosine", "wsd"]
    steps: int
    warmup: int = 0
    decay: int = 0
    floor: float = 0.0

    def factor(self, updates: int) -> float:
        """Return the factor of the update that follows `updates` updates."""
        if updates < self.warmup:
            return (updates + 1) / (self.warmup + 1)
        begin = self.steps - self.decay if self.name == "wsd" else self.warmup
        left = 1.0 - max(0, updates - begin) / max(1, self.steps - begin)
        if self.name == "constant" or left >= 1.0:
            return 1.0
        share = max(0.0, left)
        if self.name == "cosine":
            share = 0.5 * (1.0 - math.cos(math.pi * share))
        return self.floor + (1.0 - self.floor) * share


def updates_of(given: float, steps: int) -> int:
    """Return a number of updates. Below 1, `given` is a share of `steps`."""
    return round(given * steps) if given < 1 else int(given)
