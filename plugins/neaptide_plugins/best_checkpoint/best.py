"""The best evaluation so far. Knows nothing of Neaptide."""

from __future__ import annotations

import math
from typing import Literal

import attrs


@attrs.frozen
class Best:
    """The best value, its update, and the evaluations since then. None before the first."""

    value: float | None = None
    step: int | None = None
    since: int = 0
    """Number of evaluations after the best one."""
    evaluated: int | None = None
    """The update of the newest evaluation."""

    def after(self, step: int, value: float, mode: Literal["min", "max"]) -> Best:
        """Return what is best after one more evaluation. A repeated evaluation changes nothing.

        NaN is never the best value. An equal value is no better.
        """
        if step == self.evaluated:
            return self
        if self._is_beaten_by(value, mode):
            return Best(value, step, 0, step)
        return attrs.evolve(self, since=self.since + 1, evaluated=step)

    def _is_beaten_by(self, value: float, mode: Literal["min", "max"]) -> bool:
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        return value < self.value if mode == "min" else value > self.value
