"""One horizon: a fixed forecast distance, in updates. Stores its forecasts, and their scores."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

PRIOR = (0.5, 0.5, 0.25, 0.25)
"""Weights of four terms: the changes of the two curves, then the heights of the two curves. The
prior forecast is the weighted sum of these terms."""
LONGEST = 0.98
"""Upper limit of the factor by which the sum of squared errors decays at each forecast. The first
forecasts have lower factors."""
MOST = 1.0
"""Limit of forecast and observed changes, in `LossReading.unit`; larger changes are clipped."""
LARGEST = 1e100
"""Losses above this magnitude count as not finite, because their squares may overflow."""


def usable(loss: float) -> bool:
    """Return whether a forecaster can learn from a loss."""
    return abs(loss) <= LARGEST


@attrs.frozen
class LossForecast:
    """A forecast of the loss, the standard error of the forecast, and the current loss."""

    loss: float
    error: float
    now: float
    """The smoothed current loss."""
    members: tuple[float, ...]
    """The forecasts of the ensemble's members, whose mean is `loss`; a single model is one."""

    def probability_below(self, limit: float) -> float:
        """Return the probability that the loss is at most `limit`.

        The forecast is a mixture: a normal distribution with the standard error around the forecast
        of each member. So members that disagree lower the probability of a limit above them all.
        """
        error = max(self.error, 1e-300) * math.sqrt(2.0)
        shares = [0.5 * (1.0 + math.erf((limit - loss) / error)) for loss in self.members]
        return math.fsum(shares) / len(shares)


@attrs.frozen(eq=False)
class LossReading:
    """The state of the run after one update, from which a forecast is made."""

    update: int
    learned: float
    """Sum of the schedule's factors so far."""
    level: float
    """The smoothed current loss."""
    unit: float
    """The unit in which changes of the loss are measured; see `LossLevel.unit`."""
    curves: tuple[tuple[float, float], ...]
    """For each curve: its slope, and its height above the level, both divided by `unit`."""


@attrs.frozen(eq=False)
class Outlook:
    """What is known about a horizon at a reading, before anything that was learned is asked."""

    prior: float
    """The change of the loss that the curves alone forecast, divided by the reading's unit."""
    inputs: torch.Tensor
    """float64 `[inputs]`: four values of the curves, the changes of log(learning done) and of the
    schedule's factor up to the horizon, and the 64 features."""


@attrs.frozen(eq=False)
class Expected:
    """A forecast whose target is not known yet."""

    update: int
    level: float
    unit: float
    prior: float
    """The change of the loss that the curves alone forecast, divided by `unit`."""
    change: float
    """The change that curves and correction together forecast, divided by `unit`."""
    inputs: torch.Tensor
    """`Outlook.inputs`."""


def outlook(reading: LossReading, features: torch.Tensor, travel: float, turn: float) -> Outlook:
    """Return the outlook after `reading`.

    `features` is float64 `[64]`. From `reading` to the horizon, log(learning done)
    changes by `travel`, and the schedule's factor changes by `turn`.
    """
    along = [slope * travel for slope, _ in reading.curves]
    above = [height for _, height in reading.curves]
    curves = [*along, *above]
    prior = sum(share * each for share, each in zip(PRIOR, curves, strict=True))
    return Outlook(prior, torch.cat([features.new_tensor([*curves, travel, turn]), features]))


@attrs.define(eq=False)
class HorizonScore:
    """Scores the forecasts of the change of the loss after `horizon` updates.

    All changes and errors are divided by `LossReading.unit`.
    """

    horizon: int
    power: float
    """Of n errors, number k has at least the weight (k / n) ** power."""
    waiting: list[Expected] = attrs.field(factory=list)
    """Forecasts to be scored, oldest first."""
    scored: int = 0
    weight: float = 0.0
    squares: float = 0.0
    """Decayed sum of the forecasts' squared errors."""
    squares_unchanged: float = 0.0
    """Decayed sum of the squared errors of the baseline. The baseline forecasts no change."""

    @property
    def skill(self) -> float:
        """1 - (mean squared error) / (baseline's mean squared error); 0 before the first score."""
        return 1.0 - self.squares / self.squares_unchanged if self.squares_unchanged else 0.0

    @property
    def error(self) -> float:
        """Root mean square error of the forecasts; each error is divided by `LossReading.unit`."""
        return math.sqrt(self.squares / self.weight) if self.weight else math.inf

    @property
    def bytes(self) -> int:
        """Bytes of the tensors of forecasts that wait."""
        return sum(each.inputs.nbytes for each in self.waiting)

    def settle(self, expected: Expected, loss: float) -> float:
        """Score a forecast by the observed loss. Return what the curves' forecast lacked."""
        came = bounded((loss - expected.level) / expected.unit)
        fading = min(LONGEST, (self.scored / (self.scored + 1)) ** self.power)
        self.scored += 1
        self.weight = fading * self.weight + 1.0
        self.squares = fading * self.squares + (came - expected.change) ** 2
        self.squares_unchanged = fading * self.squares_unchanged + came**2
        return came - expected.prior

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return {
            "scored": self.scored,
            "weight": self.weight,
            "squares": self.squares,
            "squares_unchanged": self.squares_unchanged,
            "waiting": [attrs.asdict(each) for each in self.waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.scored, self.weight = state["scored"], state["weight"]
        self.squares, self.squares_unchanged = state["squares"], state["squares_unchanged"]
        self.waiting = [Expected(**each) for each in state["waiting"]]


def bounded(change: float) -> float:
    """Return a change of the loss, clipped to `MOST`."""
    return max(-MOST, min(MOST, change))


def corrected_changes(coming: Outlook, corrections: tuple[float, ...]) -> list[float]:
    """Return the change of the loss that curves foresee, with each of the corrections."""
    return [bounded(coming.prior + correction) for correction in corrections]
