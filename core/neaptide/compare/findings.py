"""What a comparison found, as one JSON document. The only place that states a speedup."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import attrs

from .budget import Interval, curve, interval
from .protocol import losses_of, multipliers
from .sides import BASELINE
from .sweep import INIT, LEARNING_RATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .protocol import Comparison, Run

KINDS = {"plain": "loss", "averaged": "averaged"}
"""How the weights were evaluated: as they are, and their average in their place."""


def findings(found: Comparison) -> dict[str, Any]:
    """Return all figures. Losses are validation losses, passes backward passes of whole batches."""
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
    """Say whether the baseline may be called tuned: all was swept that there is to sweep."""
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
        "seconds": _median_seconds(runs),
        "jumps": sum(run.result.jumps for run in runs),
        "refused": sum(run.result.refused for run in runs),
        "predicted_updates": sum(run.result.predicted for run in runs),
        "jump_share_of_time": _share(runs),
    }
    for label, kind in KINDS.items():
        figures[label] = _evaluated(found, runs, name, fraction, kind)
    return figures


def _evaluated(
    found: Comparison, runs: Sequence[Run], name: str, fraction: float, kind: str
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
    per_seed = multipliers(found.runs, name, fraction, kind)
    figures["multiplier"] = _multiplier(per_seed)
    figures["time_multiplier"] = _multiplier(_in_time(found, per_seed, name))
    return figures


def _multiplier(per_seed: Mapping[int, float | None]) -> dict[str, Any]:
    """Return mean and interval; without them where a seed's run lies outside the curve."""
    values = [value for value in per_seed.values() if value is not None]
    whole = len(values) == len(per_seed) and values
    found = interval(values) if whole else Interval(math.nan, None, None)
    return {**attrs.asdict(found), "per_seed": dict(per_seed)}


def _in_time(
    found: Comparison, per_seed: Mapping[int, float | None], name: str
) -> dict[int, float | None]:
    """Return the multipliers of time: those of passes times what a pass of each side takes."""
    base, mine = _seconds_a_pass(found, BASELINE), _seconds_a_pass(found, name)
    return {
        seed: None if value is None or not mine else value * base / mine
        for seed, value in per_seed.items()
    }


def _seconds_a_pass(found: Comparison, name: str) -> float:
    """Return the seconds a pass takes in the fastest run of a side, the least disturbed one."""
    return min(
        (
            run.result.seconds / run.result.updates
            for run in found.runs
            if run.side == name and run.result.updates
        ),
        default=0.0,
    )


def _median_seconds(runs: Sequence[Run]) -> float:
    return median(run.result.seconds for run in runs) if runs else 0.0


def _share(runs: Sequence[Run]) -> float:
    seconds = sum(run.result.seconds for run in runs)
    return sum(run.result.jump_seconds for run in runs) / seconds if seconds else 0.0


def _levels(found: Comparison) -> list[dict[str, Any]]:
    """Return the passes and seconds each side needs for the mean losses of the baseline."""
    reference = losses_of(found.runs, BASELINE, "best")
    if not reference:
        return []
    levels = []
    for loss in curve(reference).losses:
        needed = {}
        for side in found.sides:
            points = losses_of(found.runs, side.name, "best")
            passes = curve(points).reaching(loss) if points else None
            needed[side.name] = {
                "passes": passes,
                "seconds": None if passes is None else passes * _seconds_a_pass(found, side.name),
            }
        levels.append({"loss": loss, "needed": needed})
    return levels
