"""Forecasts the losses of a run from the losses so far. The module does not depend on hooks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import torch

from neaptide_kernels.encode_state import EXTRAS, FEATURES, LOSSES, NORMS, SECONDS, encode_state

from .curve import OFFSET, LossCurve, LossLevel, learning
from .horizon import (
    PRIOR,
    Expected,
    HorizonScore,
    LossForecast,
    LossReading,
    Outlook,
    corrected_changes,
    outlook,
    usable,
)
from .settings import ForecastSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S = TypeVar("S", bound=ForecastSettings)

POWERS = (4.0, 8.0)
"""`LossCurve.power` of the two curves. The first curve averages about the last fifth of the losses,
the second curve about the last ninth."""
TOGETHER = 32
"""Number of samples encoded in one call. The call costs little more than a call for one sample."""
INPUTS = len(PRIOR) + 2 + len(FEATURES)
"""Number of `Outlook.inputs`."""
FORGETTING = 4.0
"""`HorizonScore.power`, unless a forecaster has its own."""


@attrs.define(eq=False)
class Forecaster(ABC, Generic[S]):
    """Takes losses one by one, and forecasts later losses.

    Two curves forecast, and what was learned corrects their forecast: a subclass learns, and it
    says by how much. When the target of a forecast is known, the forecast is scored, and the
    subclass learns from the target. A sample is the state of the run after an update. Several
    samples are encoded as features in one call, so most samples are encoded some updates late.
    """

    config: S
    factor: Callable[[int], float]
    """The schedule: maps the number of updates so far to a factor of the learning rate."""
    steps: int
    """Number of updates in the whole run."""
    seed: int = 0
    """Seed of random numbers, which a subclass may need. They are its own, not torch's."""
    seen: int = 0
    """Number of updates so far."""
    learned: float = 0.0
    """Sum of the schedule's factors so far."""
    losses: list[float] = attrs.field(factory=list)
    """The newest losses, from oldest to newest, including losses that are not finite."""
    level: LossLevel = attrs.field(init=False)
    curves: list[LossCurve] = attrs.field(init=False)
    models: list[HorizonScore] = attrs.field(init=False)
    """The horizons, in rising order."""
    _waiting: list[LossReading] = attrs.field(init=False, factory=list)
    """Samples that are not encoded yet."""

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.level = LossLevel(config.smoothing)
        self.curves = [LossCurve(power) for power in POWERS]
        self.models = [HorizonScore(horizon, self.forgetting) for horizon in config.horizons]

    @property
    def forgetting(self) -> float:
        """`HorizonScore.power` of the scores."""
        return FORGETTING

    @property
    @abstractmethod
    def learned_bytes(self) -> int:
        """Bytes of the tensors of what learns."""

    @abstractmethod
    def _corrections(
        self, readings: Sequence[LossReading], outlooks: Sequence[Sequence[Outlook]], *, kept: bool
    ) -> list[list[tuple[float, ...]]]:
        """Return, for each reading and horizon, each member's correction of the curves' change.

        `kept` is true for samples, each of which comes once and in order. It is false for a reading
        that somebody asks a forecast of; such a reading must not change anything.
        """

    @abstractmethod
    def _learn(self, place: int, expected: Expected, residual: float) -> None:
        """Take what the curves lacked at the horizon with number `place`."""

    def _fit(self) -> None:
        """Learn from all that was taken; called before the corrections of samples."""

    @property
    def room(self) -> int:
        """Number of newest losses to store for the features and targets of later calls."""
        return LOSSES + TOGETHER * self.config.every + 2 * self.config.around + 1

    @property
    def bytes(self) -> int:
        """Bytes of all tensors.

        The number grows until the first target of each horizon is known.
        """
        return self.learned_bytes + sum(each.bytes for each in self.models)

    def anew(self) -> Forecaster[S]:
        """Return a forecaster with the same settings that has seen nothing."""
        return type(self)(self.config, self.factor, self.steps, self.seed)

    def begin(self, updates: int) -> None:
        """Start after `updates` updates. The losses of these updates are unknown."""
        self.seen = updates
        self.learned = math.fsum(map(self.factor, range(updates)))

    def take(self, loss: float) -> None:
        """Add the loss of the next update."""
        self.learned += self.factor(self.seen)
        self.seen += 1
        if usable(loss):
            loss = self.level.bounded(loss)
        self.losses.append(loss)
        if len(self.losses) > 2 * self.room:  # done rarely, because `del` moves all other losses
            del self.losses[: -self.room]
        if usable(loss):
            self.level.take(loss)
            x = math.log(self.learned + OFFSET)
            for curve in self.curves:
                curve.take(x, loss)
        if self.seen % self.config.every == 0 and self.level.unit > 0.0:
            self._waiting.append(self._now())
            if len(self._waiting) == TOGETHER:
                self.catch_up()

    def forecast(self, horizon: int) -> LossForecast | None:
        """Forecast the loss `horizon` updates ahead, as a mean over the updates around that update.

        Return None if recent forecasts were no better than the baseline (the current loss), if too
        few forecasts were scored, or if `outcome` returns None.
        """
        self.catch_up()
        return self.outcome(horizon) if all(map(self.consulted, self._around(horizon))) else None

    def outcome(self, horizon: int) -> LossForecast | None:
        """Forecast the same mean loss as `forecast`, even if earlier forecasts were bad.

        Return None if `horizon` is beyond the longest horizon, if there are no losses yet, or if
        one of the newest losses is not finite.
        """
        self.catch_up()
        recent = self.losses[-2 * self.config.around - 1 :]
        around = self._around(horizon)
        if not recent or not all(map(usable, recent)) or self.level.unit <= 0.0 or not around:
            return None
        reading = self._now()
        features = self._encoded([reading.update])[0]
        outlooks = [self._outlook(each.horizon, reading, features) for each in self.models]
        corrections = self._corrections([reading], [outlooks], kept=False)[0]
        places = [place for place, each in enumerate(self.models) if each in around]
        members = [corrected_changes(outlooks[place], corrections[place]) for place in places]
        near, far = around[0], around[-1]
        if near is far:  # assume a change proportional to the distance, and a constant error
            changes = [change * horizon / far.horizon for change in members[0]]
            error = far.error
        else:
            share = (horizon - near.horizon) / (far.horizon - near.horizon)
            changes = [low + share * (high - low) for low, high in zip(*members, strict=True)]
            error = math.hypot(math.sqrt(1.0 - share) * near.error, math.sqrt(share) * far.error)
        losses = tuple(reading.level + change * reading.unit for change in changes)
        loss = reading.level + math.fsum(changes) / len(changes) * reading.unit
        return LossForecast(loss, error * reading.unit, reading.level, losses)

    def consulted(self, each: HorizonScore) -> bool:
        """Return whether the forecasts of this horizon are used."""
        return each.scored >= self.config.least and each.skill > 0.0

    def catch_up(self) -> None:
        """Encode the waiting samples. For each sample, score due forecasts and make new ones."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._fit()
        encoded = self._encoded([reading.update for reading in waiting])
        outlooks = [
            [self._outlook(each.horizon, reading, features) for each in self.models]
            for reading, features in zip(waiting, encoded, strict=True)
        ]
        corrections = self._corrections(waiting, outlooks, kept=True)
        for reading, coming, corrected in zip(waiting, outlooks, corrections, strict=True):
            for place, each in enumerate(self.models):
                self._settle(place, each, reading.update)
                changes = corrected_changes(coming[place], corrected[place])
                each.waiting.append(
                    Expected(
                        reading.update,
                        reading.level,
                        reading.unit,
                        coming[place].prior,
                        math.fsum(changes) / len(changes),
                        coming[place].inputs,
                    )
                )

    def _around(self, horizon: int) -> list[HorizonScore]:
        """Return the model of `horizon`, or the models of the next shorter and longer horizons.

        If `horizon` is below the shortest horizon, return only the shortest horizon's model. If it
        is beyond the longest horizon, return an empty list.
        """
        for each in self.models:
            if horizon == each.horizon or horizon < self.models[0].horizon:
                return [each]
        for low, high in pairwise(self.models):
            if low.horizon < horizon < high.horizon:
                return [low, high]
        return []

    def _now(self) -> LossReading:
        x, level, unit = math.log(self.learned + OFFSET), self.level.now, self.level.unit
        curves = tuple((curve.slope / unit, (curve.at(x) - level) / unit) for curve in self.curves)
        return LossReading(self.seen, self.learned, level, unit, curves)

    def _outlook(self, horizon: int, reading: LossReading, features: torch.Tensor) -> Outlook:
        travel, turn = self.schedule(reading, horizon)
        return outlook(reading, features, travel, turn)

    def schedule(self, reading: LossReading, ahead: int) -> tuple[float, float]:
        """Return how log(learning done) and the schedule's factor change in `ahead` updates."""
        coming = learning(self.factor, reading.update, ahead)
        travel = math.log1p(coming / (reading.learned + OFFSET))
        return travel, self.factor(reading.update + ahead) - self.factor(reading.update)

    def _settle(self, place: int, each: HorizonScore, update: int) -> None:
        """Score the forecasts whose targets are known at `update`, and learn from them."""
        while each.waiting and each.waiting[0].update + each.horizon + self.config.around <= update:
            expected = each.waiting.pop(0)
            centre = expected.update + each.horizon
            came = self._between(centre - self.config.around - 1, centre + self.config.around)
            if came and all(map(usable, came)):
                self._learn(place, expected, each.settle(expected, math.fsum(came) / len(came)))

    def _between(self, first: int, last: int) -> Sequence[float]:
        """Return the losses of updates `first + 1` to `last`."""
        oldest = self.seen - len(self.losses)
        return self.losses[max(0, first - oldest) : max(0, last - oldest)]

    def _encoded(self, updates: Sequence[int]) -> torch.Tensor:
        """Return one row of features for each of `updates`: float64 `[len(updates), 64]`."""
        runs = len(updates)
        losses = torch.zeros(runs, LOSSES, dtype=torch.float64, device="cpu")
        counts = torch.zeros(runs, dtype=torch.int64, device="cpu")
        extras = losses.new_zeros(runs, len(EXTRAS))
        for row, update in enumerate(updates):
            window = self._between(update - LOSSES, update)
            losses[row, : len(window)] = losses.new_tensor(window)
            counts[row] = len(window)
            extras[row, EXTRAS.index("learning_rate_share")] = self.factor(max(0, update - 1))
            extras[row, EXTRAS.index("progress")] = update / self.steps
        none = torch.zeros_like(counts)
        norms, seconds = losses.new_zeros(runs, NORMS), losses.new_zeros(runs, SECONDS)
        encoded: torch.Tensor = encode_state(losses, counts, norms, none, seconds, none, extras)
        return encoded

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return {
            "seen": self.seen,
            "learned": self.learned,
            "losses": list(self.losses),
            "level": attrs.asdict(self.level),
            "curves": [attrs.asdict(curve) for curve in self.curves],
            "waiting": [attrs.asdict(reading) for reading in self._waiting],
            "outlooks": [each.state_dict() for each in self.models],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.seen, self.learned = state["seen"], state["learned"]
        self.losses = list(state["losses"])
        self.level = LossLevel(**state["level"])
        self.curves = [LossCurve(**curve) for curve in state["curves"]]
        self._waiting = [LossReading(**reading) for reading in state["waiting"]]
        for each, saved in zip(self.models, state["outlooks"], strict=True):
            each.load_state_dict(saved)
