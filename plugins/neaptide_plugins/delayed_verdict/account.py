"""What predicting has cost so far, and what the judged jumps were worth; both in updates."""

from __future__ import annotations

import attrs

from .pacing import JumpVerdict

A_FORWARD = 0.5
"""Updates that a forward of a probe costs.

Arithmetic alone is a third: a backward costs two forwards. Weights are also copied. It is a number
and not a measured time, so that a run and its resumed copy decide alike."""
OF_A_JUMP = 2
"""Forwards of the guard for a jump that is accepted at the first try."""


@attrs.define
class PredictionAccount:
    """The forwards of Predict steps and verdicts so far, and the worth of the judged jumps."""

    forwards: int = 0
    worth: float = 0.0
    """Updates that the judged jumps saved, less those that they lost."""

    @property
    def cost(self) -> float:
        """The cost of all forwards so far, in updates."""
        return self.forwards * A_FORWARD

    def affords(self, forwards: int, updates: int, share: float) -> bool:
        """Return whether `forwards` more cost at most `share` of `updates`, beyond the worth."""
        return self.cost + forwards * A_FORWARD <= share * updates + self.worth


def worth_of(verdict: JumpVerdict, gain: float, fall: float | None, horizon: int) -> float:
    """Return the updates that a jump with the mean gain `gain` saved; negative if it lost some.

    `fall` is the reduction of the loss by an update, or None if it is not known yet. The worth is
    at most `horizon` updates. It is 0 if the verdict is unclear or `fall` is not known.
    """
    if verdict is JumpVerdict.UNCLEAR or fall is None:
        return 0.0
    saved = abs(gain) / fall if fall > 0.0 else float(horizon)
    limited = min(float(horizon), saved)
    return limited if gain > 0.0 else -limited
