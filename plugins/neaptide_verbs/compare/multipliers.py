"""Compute the multiplier of a side, which is one of the compared configurations.

The multiplier is the number of backward passes that the baseline needs to reach the side's loss,
divided by the side's number of backward passes. All functions are pure.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import attrs

from .budget import Worth, curve, paired, worth
from .sides import BASELINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .runs import ComparedRun

DIVERGED, BASELINE_DIVERGED = "diverged", "baseline diverged"


@attrs.frozen
class Multiplier:
    """The multiplier of a side: over all seeds, and for each seed."""

    worth: Worth | None
    """The multiplier over all seeds; None if a run of either side diverged."""
    outside: str | None
    """The reason why there is no mean multiplier: `diverged`, `baseline diverged`, or the value of
    `Worth.outside`. None if there is a mean."""
    per_seed: Mapping[int, float | None]
    """The multiplier of each seed; None if the seed's loss is outside the curve."""


def losses_of(runs: Sequence[ComparedRun], side: str, kind: str) -> list[tuple[float, float]]:
    """Return (passes, loss) of each run of a side. `kind` is `loss`, `averaged` or `best`.

    A budget with a diverged seed is left out, because the mean of the other seeds is too low.
    """
    points = []
    for fraction in sorted({run.fraction for run in runs if run.side == side}):
        at = _runs_at(runs, side, fraction)
        losses = [_loss(run, kind) for run in at]
        if all(map(math.isfinite, losses)):
            points += [(_passes(at), loss) for loss in losses]
    return points


def multiplier_of(runs: Sequence[ComparedRun], side: str, fraction: float, kind: str) -> Multiplier:
    """Return the multiplier of a side's runs at one budget.

    Each seed contributes the difference between its loss and the loss of the baseline's run with
    the same seed and budget.
    """
    mine = _runs_at(runs, side, fraction)
    reference = _runs_at(runs, BASELINE, fraction) or _runs_at(runs, BASELINE, 1.0)
    theirs = {run.seed: _loss(run, kind) for run in reference}
    nothing: dict[int, float | None] = {run.seed: None for run in mine}
    if not mine or not all(math.isfinite(theirs.get(run.seed, math.nan)) for run in mine):
        return Multiplier(None, BASELINE_DIVERGED, nothing)
    if not all(math.isfinite(_loss(run, kind)) for run in mine):
        return Multiplier(None, DIVERGED, nothing)
    baseline, at = curve(losses_of(runs, BASELINE, kind)), _passes(reference)
    differences = {run.seed: _loss(run, kind) - theirs[run.seed] for run in mine}
    budget = _passes(mine)
    found = worth(baseline, at, list(differences.values()), budget)
    per_seed = {
        seed: paired(baseline, at, difference, budget) for seed, difference in differences.items()
    }
    return Multiplier(found, found.outside, per_seed)


def _runs_at(runs: Sequence[ComparedRun], side: str, fraction: float) -> list[ComparedRun]:
    return [run for run in runs if run.side == side and run.fraction == fraction]


def _passes(runs: Sequence[ComparedRun]) -> float:
    return fmean(run.result.updates for run in runs)


def _loss(run: ComparedRun, kind: str) -> float:
    value: float | None = getattr(run.result, kind)
    return math.nan if value is None else value
