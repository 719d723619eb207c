"""The result of a comparison as one JSON document. Only this document states a speedup."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import attrs

from .budget import Worth, curve
from .multipliers import losses_of, multiplier_of
from .sides import BASELINE
from .sweep import INIT, LEARNING_RATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .multipliers import Multiplier
    from .runs import ComparedRun, Comparison

KINDS = {"plain": "loss", "averaged": "averaged"}
"""The two evaluations: of the final weights, and of the average of the weights."""


def findings(found: Comparison) -> dict[str, Any]:
    """Return all figures of a comparison.

    Losses are validation losses. Passes are backward passes of whole batches.
    """
    return {
        "seeds": list(found.settings.seeds),
        "tuning_seeds": list(found.settings.tuning_seeds) if found.tuned else [],
        "baseline_is_tuned": is_tuned(found),
        "sides": {side.name: _side(found, side.name) for side in found.sides},
        "levels": _levels(found),
        "runs": [
            {
                "side": run.side,
                "seed": run.seed,
                "fraction": run.fraction,
                **attrs.asdict(run.result),
            }
            for run in found.runs
        ],
    }


def is_tuned(found: Comparison) -> bool:
    """Return whether the baseline counts as tuned: learning rate, warmup and decay were swept."""
    swept = found.tuned.get(BASELINE)
    return swept is not None and {LEARNING_RATE, "warmup", "decay"} <= set(swept.swept)


def _side(found: Comparison, name: str) -> dict[str, Any]:
    side = next(side for side in found.sides if side.name == name)
    tuned = found.tuned.get(name)
    fractions = sorted({run.fraction for run in found.runs if run.side == name})
    return {
        "predicts": side.predicts,
        "swept": list(tuned.swept) if tuned else [],
        "initialisation_swept": tuned is not None and INIT in tuned.swept,
        "chosen": dict(tuned.changes) if tuned else {},
        "tried": [{"changes": dict(changes), "loss": loss} for changes, loss in tuned.tried]
        if tuned
        else [],
        "settings": dict(side.values),
        "budgets": [_at(found, name, fraction) for fraction in fractions],
    }


def _at(found: Comparison, name: str, fraction: float) -> dict[str, Any]:
    runs = found.of(name, fraction)
    updates = [run.result.updates for run in runs if run.result.updates]
    figures: dict[str, Any] = {
        "fraction": fraction,
        "passes": median(updates) if updates else 0,
        "seconds": _seconds_a_pass(runs) * median(updates) if updates else 0.0,
        "jumps": sum(run.result.jumps for run in runs),
        "refused": sum(run.result.refused for run in runs),
        "predicted_updates": sum(run.result.predicted for run in runs),
        "jump_share_of_time": _share(runs),
    }
    for label, kind in KINDS.items():
        figures[label] = _evaluated(found, runs, name, fraction, kind)
    return figures


def _evaluated(
    found: Comparison, runs: Sequence[ComparedRun], name: str, fraction: float, kind: str
) -> dict[str, Any] | None:
    losses = [getattr(run.result, kind) for run in runs]
    if any(loss is None for loss in losses):
        return None
    finite = [loss for loss in losses if math.isfinite(loss)]
    figures: dict[str, Any] = {
        "mean_loss": fmean(finite) if len(finite) == len(losses) else math.inf,
        "spread": stdev(finite) if len(finite) > 1 else None,
        "losses": {run.seed: loss for run, loss in zip(runs, losses, strict=True)},
    }
    found_worth = multiplier_of(found.runs, name, fraction, kind)
    figures["multiplier"] = _figures(found_worth, 1.0)
    figures["time_multiplier"] = _figures(found_worth, _time_ratio(found, name, fraction))
    return figures


def _figures(found: Multiplier, factor: float) -> dict[str, Any]:
    """Return the figures of a multiplier, converted from passes by `factor`.

    There are no figures if a run diverged.
    """
    worth = found.worth or Worth(math.nan, None, None, math.nan, math.nan, None)
    per_seed = {
        seed: None if value is None else value * factor for seed, value in found.per_seed.items()
    }
    return {**attrs.asdict(worth.times(factor)), "outside": found.outside, "per_seed": per_seed}


def _time_ratio(found: Comparison, name: str, fraction: float) -> float:
    """Return the baseline's time per pass, divided by the side's time per pass.

    The ratio is nan in three cases: the side made no pass; the numbers of threads of the two sides
    differ; both sides ended with bitwise equal losses, so that times differ only by noise.
    """
    if name == BASELINE:
        return 1.0
    mine = found.of(name, fraction)
    theirs = found.of(BASELINE, fraction) or found.of(BASELINE, 1.0)
    same = [run.result.loss for run in mine] == [run.result.loss for run in theirs]
    threads = {run.result.threads for run in (*mine, *theirs)}
    seconds = _seconds_a_pass(mine)
    if same or len(threads) > 1 or not seconds:
        return math.nan
    return _seconds_a_pass(theirs) / seconds


def _seconds_a_pass(runs: Sequence[ComparedRun]) -> float:
    """Return the seconds per pass of the fastest of `runs`.

    The fastest run was least disturbed by other work. The two compared sides must have equally many
    runs, because the fastest of more runs is faster by chance. All runs must have the same budget,
    because shorter runs may make fewer jumps.
    """
    return min(
        (run.result.seconds / run.result.updates for run in runs if run.result.updates),
        default=0.0,
    )


def _share(runs: Sequence[ComparedRun]) -> float:
    seconds = sum(run.result.seconds for run in runs)
    return sum(run.result.jump_seconds for run in runs) / seconds if seconds else 0.0


def _needed(points: Sequence[tuple[float, float]], loss: float, a_pass: float) -> dict[str, Any]:
    """Return the budget that a side needs for a loss.

    The budget is marked `at_most` if the side's shortest runs already reach the loss.
    """
    if not points:
        return {"passes": None, "seconds": None, "at_most": False}
    side = curve(points)
    at_most = side.losses[0] < loss
    passes = side.budgets[0] if at_most else side.reaching(loss)
    seconds = None if passes is None else passes * a_pass
    return {"passes": passes, "seconds": seconds, "at_most": at_most}


def _levels(found: Comparison) -> list[dict[str, Any]]:
    """Return the passes and seconds that each side needs for the baseline's mean losses."""
    reference = losses_of(found.runs, BASELINE, "best")
    if not reference:
        return []
    a_pass = {side.name: _seconds_a_pass(found.of(side.name, 1.0)) for side in found.sides}
    levels: list[dict[str, Any]] = []
    losses = dict.fromkeys(curve(reference).losses)  # budgets of equal loss form one level
    for loss in losses:
        needed = {}
        for side in found.sides:
            needed[side.name] = _needed(
                losses_of(found.runs, side.name, "best"), loss, a_pass[side.name]
            )
        levels.append({"loss": loss, "needed": needed})
    return levels
