"""One horizon: a fixed forecast distance, in updates.

Stores its forecasts, the scores of the forecasts, and the regression, which learns from losses.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from .ridge import Ridge

PRIOR = (0.5, 0.5, 0.25, 0.25)
"""Weights of four terms: the changes of the two curves, then the heights of the two curves. The
prior forecast is the weighted sum of these terms."""
LOOSER = 10.0
"""Penalty of a feature / penalty of an input that comes from the curves."""
LONGEST = 0.98
"""Upper limit of the factor by which the sum of squared errors decays at each forecast. The first
forecasts have lower factors."""
MOST = 1.0
"""Limit of forecast and observed changes, in `LossReading.unit`; larger changes are clipped."""


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
class Expected:
    """A forecast whose target is not known yet."""

    update: int
    level: float
    unit: float
    prior: float
    """The change of the loss that the curves alone forecast, divided by `unit`."""
    change: float
    """The change that curves and regression together forecast, divided by `unit`."""
    inputs: torch.Tensor
    """The regression's inputs, float64 `[inputs]`."""


@attrs.define(eq=False)
class HorizonModel:
    """Forecasts the change of the loss after `horizon` updates, and scores the forecasts.

    All changes and errors are divided by `LossReading.unit`.
    """

    horizon: int
    ridge: Ridge
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
        """Bytes of the model's tensors."""
        return self.ridge.bytes + sum(each.inputs.nbytes for each in self.waiting)

    def expect(
        self, reading: LossReading, features: torch.Tensor, travel: float, turn: float
    ) -> Expected:
        """Return the forecast made after `reading`.

        `features` is float64 `[64]`. From `reading` to the horizon, log(learning done)
        changes by `travel`, and the schedule's factor changes by `turn`.
        """
        along = [slope * travel for slope, _ in reading.curves]
        above = [height for _, height in reading.curves]
        curves = [*along, *above]
        prior = sum(share * each for share, each in zip(PRIOR, curves, strict=True))
        inputs = torch.cat([features.new_tensor([*curves, travel, turn]), features])
        change = _bounded(prior + self.ridge.predict(inputs))
        return Expected(reading.update, reading.level, reading.unit, prior, change, inputs)

    def settle(self, expected: Expected, loss: float) -> None:
        """Score a forecast by the observed loss, and train the regression on this loss."""
        came = _bounded((loss - expected.level) / expected.unit)
        fading = min(LONGEST, (self.scored / (self.scored + 1)) ** self.ridge.power)
        self.scored += 1
        self.weight = fading * self.weight + 1.0
        self.squares = fading * self.squares + (came - expected.change) ** 2
        self.squares_unchanged = fading * self.squares_unchanged + came**2
        self.ridge.learn(expected.inputs, came - expected.prior)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return {
            "scored": self.scored,
            "weight": self.weight,
            "squares": self.squares,
            "squares_unchanged": self.squares_unchanged,
            "waiting": [attrs.asdict(each) for each in self.waiting],
            "ridge": self.ridge.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.scored, self.weight = state["scored"], state["weight"]
        self.squares, self.squares_unchanged = state["squares"], state["squares_unchanged"]
        self.waiting = [Expected(**each) for each in state["waiting"]]
        self.ridge.load_state_dict(state["ridge"])


def _bounded(change: float) -> float:
    return max(-MOST, min(MOST, change))


def horizon_model(
    horizon: int, features: int, every: int, penalty: float, power: float
) -> HorizonModel:
    """Return an untrained model for one horizon.

    There is one sample per `every` updates. The targets of neighbouring samples overlap, so
    `horizon / every` samples have about as much information as one independent sample. Therefore
    the penalties are multiplied by `horizon / every`.
    """
    alike = max(1.0, horizon / every)
    curves = len(PRIOR)
    penalties = torch.full(
        (1 + curves + 2 + features,), penalty * alike, dtype=torch.float64, device="cpu"
    )
    penalties[1 : 1 + curves] /= LOOSER
    return HorizonModel(horizon, Ridge(penalties, curves, power))
