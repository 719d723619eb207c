"""One horizon: what is expected of it, how that fared, and what is learned from it."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from .ridge import Ridge

PRIOR = (0.5, 0.5, 0.25, 0.25)
"""Before anything is learned: the curves' mean change, and half of the way to their mean level."""
LOOSER = 10.0
"""The curves' inputs are penalised by so much less than the features."""
LONGEST = 0.98
"""Decay of squared errors by forecast, at most; early on they fade as samples do."""
MOST = 1.0
"""Largest change that is forecast or learned from, in units of the loss."""


@attrs.frozen(eq=False)
class LossReading:
    """What was known after one update."""

    update: int
    learned: float
    """Sum of the schedule's factors until then."""
    level: float
    """The smoothed loss."""
    unit: float
    """What changes of the loss are relative to."""
    curves: tuple[tuple[float, float], ...]
    """Of each curve its slope, and its height over the level, both in units."""


@attrs.frozen(eq=False)
class Expected:
    """A forecast whose target has yet to arrive."""

    update: int
    level: float
    unit: float
    prior: float
    """The change that the curves alone make likely."""
    change: float
    """The change that is forecast."""
    inputs: torch.Tensor
    """float64 `[inputs]`."""


@attrs.define(eq=False)
class HorizonModel:
    """Expects changes of the loss `horizon` updates ahead, in units, and is scored on them."""

    horizon: int
    ridge: Ridge
    waiting: list[Expected] = attrs.field(factory=list)
    """Oldest first."""
    scored: int = 0
    weight: float = 0.0
    squares: float = 0.0
    """Of errors, in units."""
    squares_unchanged: float = 0.0
    """Of the errors of who says that the loss stays as it is."""

    @property
    def skill(self) -> float:
        """1 - the mean squared error by that of "it stays as it is"; 0 before the first score."""
        return 1.0 - self.squares / self.squares_unchanged if self.squares_unchanged else 0.0

    @property
    def error(self) -> float:
        """Root of the mean squared error, in units."""
        return math.sqrt(self.squares / self.weight) if self.weight else math.inf

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""
        return self.ridge.bytes + sum(each.inputs.nbytes for each in self.waiting)

    def expect(
        self, reading: LossReading, features: torch.Tensor, travel: float, turn: float
    ) -> Expected:
        """Return what is expected after `reading`.

        `features` are float64 `[64]`, `travel` is the change of log learning until then, `turn`
        that of the schedule's factor.
        """
        along = [slope * travel for slope, _ in reading.curves]
        above = [height for _, height in reading.curves]
        curves = [*along, *above]
        prior = sum(share * each for share, each in zip(PRIOR, curves, strict=True))
        inputs = torch.cat([features.new_tensor([*curves, travel, turn]), features])
        change = _bounded(prior + self.ridge.predict(inputs))
        return Expected(reading.update, reading.level, reading.unit, prior, change, inputs)

    def settle(self, expected: Expected, loss: float) -> None:
        """Score a forecast by the loss that came, and learn from it."""
        came = _bounded((loss - expected.level) / expected.unit)
        fading = min(LONGEST, (self.scored / (self.scored + 1)) ** self.ridge.power)
        self.scored += 1
        self.weight = fading * self.weight + 1.0
        self.squares = fading * self.squares + (came - expected.change) ** 2
        self.squares_unchanged = fading * self.squares_unchanged + came**2
        self.ridge.learn(expected.inputs, came - expected.prior)

    def state_dict(self) -> dict[str, Any]:
        """Return all of it but the configuration."""
        return {
            "scored": self.scored,
            "weight": self.weight,
            "squares": self.squares,
            "squares_unchanged": self.squares_unchanged,
            "waiting": [attrs.asdict(each) for each in self.waiting],
            "ridge": self.ridge.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.scored, self.weight = state["scored"], state["weight"]
        self.squares, self.squares_unchanged = state["squares"], state["squares_unchanged"]
        self.waiting = [Expected(**each) for each in state["waiting"]]
        self.ridge.load_state_dict(state["ridge"])


def _bounded(change: float) -> float:
    return max(-MOST, min(MOST, change))


def horizon_model(
    horizon: int, features: int, every: int, penalty: float, power: float
) -> HorizonModel:
    """Return the model of one horizon before the first sample.

    Targets of neighbouring samples overlap by nearly the whole horizon, so that `horizon / every`
    of them say what one would.
    """
    alike = max(1.0, horizon / every)
    curves = len(PRIOR)
    penalties = torch.full(
        (1 + curves + 2 + features,), penalty * alike, dtype=torch.float64, device="cpu"
    )
    penalties[1 : 1 + curves] /= LOOSER
    return HorizonModel(horizon, Ridge(penalties, curves, power))
