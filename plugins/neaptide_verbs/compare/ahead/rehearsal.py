"""What a comparison will train, before it trains: the fewest and the most trials.

The number depends on the losses, because tuning goes on while the best rate is at an edge. So the
comparison is rehearsed with invented losses: kindest and unkindest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import overlay
from neaptide_verbs.compare.protocol import compare
from neaptide_verbs.compare.sides import BASELINE
from neaptide_verbs.compare.trials import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide_verbs.compare.runs import ComparisonSettings
    from neaptide_verbs.compare.sides import Side
    from neaptide_verbs.compare.trials import TrainingTrial

    Kept = Callable[[TrainingTrial], Result | None]

TUNING_SEEDS = 3
"""Number of tuning seeds where this costs less than twice the updates of one seed."""
_FAR = 1e9
"""An invented loss beyond all real ones."""


@attrs.define(eq=False)
class Rehearsal:
    """The trials that a comparison asks for if its losses are the kindest, or the unkindest."""

    sides: Mapping[str, Side]
    kind: bool
    """True for the fewest trials: the configured settings are best. False for the most: whatever
    is tried last is best, and the candidate is better than every baseline."""
    kept: Kept
    asked: dict[str, TrainingTrial] = attrs.field(factory=dict)
    """The trials that are not kept, by key, in the order of the comparison."""
    known: set[str] = attrs.field(factory=set)
    """The keys of the trials that are kept."""

    def train(self, trials: Sequence[TrainingTrial]) -> list[Result]:
        """Return kept results, and invented results for all other trials."""
        return [self._result(trial) for trial in trials]

    def _result(self, trial: TrainingTrial) -> Result:
        kept = self.kept(trial)
        if kept is not None:
            self.known.add(trial.key)
            return kept
        self.asked.setdefault(trial.key, trial)
        updates = trial.values["train"]["steps"]
        return Result(self._loss(trial), None, updates, 0.0, 0, 0, 0, 0.0, "", 1)

    def _loss(self, trial: TrainingTrial) -> float:
        purpose, side, updates = (*purpose_of(trial), trial.values["train"]["steps"])
        if purpose == "tuned":
            return self._distance(trial, side) if self.kind else -_FAR - len(self.asked)
        law = -math.log(updates)
        return law if side == BASELINE or self.kind else -_FAR

    def _distance(self, trial: TrainingTrial, side: str) -> float:
        """Return a loss that is larger the farther a trial is from what its side is given."""
        given = self.sides[side].values
        same = {"seed": trial.values["seed"], "optimizer": {"lr": trial.values["optimizer"]["lr"]}}
        away = abs(math.log(trial.values["optimizer"]["lr"] / given["optimizer"]["lr"]))
        return _FAR + away + (overlay(dict(given), same) != trial.values)


def rehearsed(
    sides: Sequence[Side], settings: ComparisonSettings, *, kind: bool, kept: Kept | None = None
) -> Rehearsal:
    """Return the rehearsal of a comparison; `kept(trial)` returns a trial's result, if known."""
    found = Rehearsal({side.name: side for side in sides}, kind, kept or _nothing_kept)
    compare(sides, settings, found.train)
    return found


def purpose_of(trial: TrainingTrial) -> tuple[str, str]:
    """Return `tuned` or `reported`, and the name of the side, from a trial's label."""
    first, _, rest = trial.label.partition(" ")
    if first == "tune":
        return "tuned", rest.split(" ", 1)[0].rstrip(",")
    return "reported", first.rstrip(",")


def updates_of(trials: Mapping[Any, TrainingTrial]) -> int:
    """Return the updates of all trials together."""
    return sum(int(trial.values["train"]["steps"]) for trial in trials.values())


def default_tuning_seeds(sides: Sequence[Side], settings: ComparisonSettings) -> tuple[int, ...]:
    """Return the smallest seeds that are not reported: three, or one where three cost twice.

    The cost is the number of updates of the fewest trials, with no trial kept. So the same command
    has the same seeds when it continues.
    """
    free = (seed for seed in range(TUNING_SEEDS + len(settings.seeds)))
    seeds = [seed for seed in free if seed not in settings.seeds][:TUNING_SEEDS]
    several, one = (
        updates_of(rehearsed(sides, attrs.evolve(settings, tuning_seeds=some), kind=True).asked)
        for some in (tuple(seeds), tuple(seeds[:1]))
    )
    return tuple(seeds) if several < 2 * one else tuple(seeds[:1])


def _nothing_kept(_trial: TrainingTrial) -> None:
    return None
