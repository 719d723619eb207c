"""The steps of a comparison.

Each side (compared configuration) is tuned, and trained with all seeds at all budgets (numbers of
updates). Then the baseline is trained with larger budgets until it reaches the candidate's loss.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import at, leaves, nested, overlay

from .multipliers import multiplier_of
from .runs import STEP, ComparedRun, Comparison, ComparisonSettings
from .schedule import SCHEDULE, has_shape
from .sides import BASELINE, CANDIDATE
from .sweep import DECAY, INIT, LEARNING_RATE, WARMUP, Tuned, tune
from .trials import Result, trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide.config.values import KeyPath

    from .sides import Side
    from .trials import TrainingTrial

    Train = Callable[[Sequence[TrainingTrial]], Sequence[Result]]

_LONGEST = 4.0
"""Largest extended budget of the baseline, as a multiple of the configured budget. The baseline is
extended to reach a candidate's loss."""
KNOBS = (LEARNING_RATE, INIT, WARMUP, DECAY)


def compare(sides: Sequence[Side], settings: ComparisonSettings, train: Train) -> Comparison:
    """Tune the sides, train them, and extend the baseline until it reaches the candidate."""
    tuned: dict[str, Tuned] = {}
    final: list[Side] = []
    for side in sides:
        start = side.values
        if settings.sweeps:
            start = _with_common(start, sides[0].values, tuned.get(BASELINE))
            found = _tuned(side, start, settings, train)
            tuned[side.name] = found
            start = _laid(start, found.changes)
        final.append(attrs.evolve(side, values=start))
    runs = _trained(final, settings, train)
    baseline = final[0]
    fraction = max(settings.budgets)
    while fraction * STEP <= _LONGEST * 1.001 and _lies_beyond(runs, settings):
        fraction *= STEP
        runs += _run(train, [(baseline, fraction, seed) for seed in settings.seeds])
    return Comparison(settings, tuple(final), tuned, tuple(runs))


def _tuned(
    side: Side, values: Mapping[str, Any], settings: ComparisonSettings, train: Train
) -> Tuned:
    # The settings that all sides share were tuned with the baseline.
    knobs = KNOBS if side.name == BASELINE else (LEARNING_RATE,)

    def ask(options: Sequence[Mapping[str, Any]]) -> list[float]:
        asked = [
            trial(f"tune {side.name}{_told(changes)},", values, seed, 1.0, changes)
            for changes in options
            for seed in settings.tuning_seeds
        ]
        losses = [result.best for result in train(asked)]
        seeds = len(settings.tuning_seeds)
        return [fmean(losses[i * seeds : (i + 1) * seeds]) for i in range(len(options))]

    return tune(values, knobs, ask)


def _with_common(
    values: Mapping[str, Any], plain: Mapping[str, Any], baseline: Tuned | None
) -> Mapping[str, Any]:
    """Apply the baseline's tuned settings, except optimizer settings, to a side.

    The side keeps a setting that differs from the configured baseline (`plain`), because the
    comparison measures the effect of this difference. If the side has another model, the side also
    keeps its own model options.
    """
    if baseline is None:
        return values
    other_model = values["model"]["name"] != plain["model"]["name"]
    own = {"optimizer", "model"} if other_model else {"optimizer"}
    for path in leaves(baseline.changes):
        if path[:2] == ("plugins", SCHEDULE) and not has_shape(values):
            continue
        if path[0] not in own and _found(values, path) == _found(plain, path):
            values = _laid(values, nested(path, at(baseline.changes, path)))
    return values


def _found(values: Mapping[str, Any], path: KeyPath) -> Any:
    try:
        return at(values, path)
    except KeyError:
        return None


def _laid(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return overlay(dict(values), dict(changes))


def _trained(
    sides: Sequence[Side], settings: ComparisonSettings, train: Train
) -> list[ComparedRun]:
    wanted = []
    for (
        seed
    ) in settings.seeds:  # Sides alternate, so that a slow period of the machine slows all sides.
        for side in sides:
            fractions = {
                BASELINE: settings.budgets,
                CANDIDATE: settings.candidate_budgets,
            }.get(side.name, (1.0,))
            wanted += [(side, fraction, seed) for fraction in fractions]
    return _run(train, wanted)


def _run(train: Train, wanted: Sequence[tuple[Side, float, int]]) -> list[ComparedRun]:
    trials = [
        trial(f"{side.name},", side.values, seed, fraction, {}) for side, fraction, seed in wanted
    ]
    return [
        ComparedRun(side.name, seed, fraction, result)
        for (side, fraction, seed), result in zip(wanted, train(trials), strict=True)
    ]


def _lies_beyond(runs: Sequence[ComparedRun], settings: ComparisonSettings) -> bool:
    """Return whether a side reaches a lower loss than the baseline's longest runs.

    It is enough that the final weights, or the averaged weights, have a lower loss.
    """
    sides = {run.side for run in runs} - {BASELINE}
    return any(
        multiplier_of(runs, side, fraction, kind).outside == "above"
        for side in sides
        for fraction in settings.candidate_budgets
        for kind in ("loss", "averaged")
    )


def _told(changes: Mapping[str, Any]) -> str:
    return "".join(f" {path[-1]} {at(changes, path)}" for path in leaves(changes))
