"""The pace of jumps: a factor for the length of jumps, and a factor for the length of windows.

A window is the series of updates that the predictor samples before a jump. Each regime (a range of
learning rates) has its own pace.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from .config import DelayedVerdictConfig

REGIMES = ("high", "middle", "low")
"""Names of the regimes: thirds of the range from 0 to the largest learning rate."""


class JumpVerdict(Enum):
    """The judgement of a jump."""

    WORTHWHILE = "worthwhile"
    HARMFUL = "harmful"
    UNCLEAR = "unclear"


def verdict_of(gain: float, error: float, certainty: float) -> JumpVerdict:
    """Return the verdict on a jump with the mean gain `gain`, whose standard error is `error`."""
    if abs(gain) <= certainty * error:
        return JumpVerdict.UNCLEAR
    return JumpVerdict.WORTHWHILE if gain > 0.0 else JumpVerdict.HARMFUL


def regime_of(factor: float) -> str:
    """Return the regime of a learning rate; `factor` is learning rate / largest learning rate."""
    return REGIMES[min(2, int((1.0 - min(max(factor, 0.0), 1.0)) * 3.0))]


@attrs.frozen
class Pacing:
    """The pace of one regime: the factors `scale` (jumps) and `window`, and the current pause."""

    scale: float = 1.0
    window: float = 1.0
    harmful: int = 0
    """Number of harmful jumps in a row, at most `patience` - 1."""
    until: int = 0
    """The end of the pause: the first update at which a jump is allowed again."""

    def after(self, verdict: JumpVerdict, update: int, config: DelayedVerdictConfig) -> Pacing:
        """Return the pacing that follows from this pacing and a verdict at update `update`."""
        if verdict is JumpVerdict.UNCLEAR:
            return self
        worthwhile = verdict is JumpVerdict.WORTHWHILE
        factors = (
            (config.grow, config.window_grow)
            if worthwhile
            else (config.shrink, config.window_shrink)
        )
        scale, window = (
            min(config.largest, max(config.smallest, now * factor))
            for now, factor in zip((self.scale, self.window), factors, strict=True)
        )
        if worthwhile:
            return Pacing(scale, window, 0, self.until)
        harmful = self.harmful + 1
        # The count stays at `patience` - 1, so one harmful jump after a pause begins a new pause.
        until = update + config.pause if harmful >= config.patience else self.until
        return Pacing(scale, window, min(harmful, config.patience - 1), until)

    def scale_at(self, update: int) -> float:
        """Return the scale at an update, or 0 if the update is in a pause."""
        return 0.0 if update < self.until else self.scale
