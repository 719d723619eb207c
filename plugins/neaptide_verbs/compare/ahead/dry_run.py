"""`neaptide compare --dry-run`: how many trials a comparison trains, and about how long."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from neaptide.io.units import duration
from neaptide.run.signals import stop_on_signals
from neaptide_verbs.compare.pool import Pool
from neaptide_verbs.compare.trials import read_result, trial

from .rehearsal import purpose_of, rehearsed, updates_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide_verbs.compare.runs import ComparisonSettings
    from neaptide_verbs.compare.sides import Side
    from neaptide_verbs.compare.trials import Result, TrainingTrial

    Train = Callable[[Sequence[TrainingTrial]], Sequence[Result]]

_SHORT, _LONG = 4, 12
"""Updates of the two trials from whose times those of longer trials follow."""


def dry_run(
    sides: Sequence[Side], settings: ComparisonSettings, root: Path, jobs: int, threads: int
) -> dict[str, Any]:
    """Return the counts of trials and updates, and the seconds; short trials are trained for it."""

    def kept(asked: TrainingTrial) -> Result | None:
        return read_result(asked.directory(root), asked)

    fewest, most = (rehearsed(sides, settings, kind=kind, kept=kept) for kind in (True, False))
    costs = {side.name: (0.0, 0.0) for side in sides}
    if fewest.asked:
        with ExitStack() as stack:
            stop = stack.enter_context(stop_on_signals())
            folder = Path(stack.enter_context(TemporaryDirectory()))
            pool = stack.enter_context(Pool(folder, jobs, threads, lambda *_: None, stop))
            costs = {side.name: _cost(side, pool.train, jobs) for side in sides}
    whole = max(side.values["train"]["steps"] for side in sides)
    begin, each = (max(cost[part] for cost in costs.values()) for part in (0, 1))
    return {
        "trials": len(fewest.asked),
        "most_trials": len(most.asked),
        "kept": len(fewest.known),
        **Counter(purpose_of(one)[0] for one in fewest.asked.values()),
        "updates": updates_of(fewest.asked),
        "most_updates": updates_of(most.asked),
        "seconds": _seconds(fewest.asked, costs, jobs),
        "most_seconds": _seconds(most.asked, costs, jobs),
        "jobs": jobs,
        "seconds_of_a_trial": begin + each * whole,
        "updates_of_a_trial": whole,
        "tuning_seeds": list(settings.tuning_seeds) if settings.sweeps else [],
        "seeds": list(settings.seeds),
    }


def told(plan: Mapping[str, Any]) -> str:
    """Return a dry run in two lines."""
    seeds = {"tuned": plan["tuning_seeds"], "reported": plan["seeds"]}
    parts = ", ".join(
        f"{plan.get(purpose, 0)} {word} (seeds {', '.join(map(str, seeds[purpose]))})"
        for purpose, word in (("tuned", "to tune"), ("reported", "reported"))
        if seeds[purpose]
    )
    kept = f"; {plan['kept']} more are kept" if plan["kept"] else ""
    lines = [f"{plan['trials']} trials: {parts}{kept}"]
    if plan["trials"]:
        lines.append(_times(plan))
    if plan["most_trials"] > plan["trials"]:
        lines.append(
            f"at most {plan['most_trials']} trials, {duration(plan['most_seconds'])}, if the best "
            "settings lie at the edges and the candidate is far better"
        )
    return "\n".join(lines)


def _times(plan: Mapping[str, Any]) -> str:
    of_a_trial = duration(plan["seconds_of_a_trial"])
    return (
        f"about {duration(plan['seconds'])} with {plan['jobs']} at once: a trial of "
        f"{plan['updates_of_a_trial']} updates takes {of_a_trial} (estimated from short trials now)"
    )


def _cost(side: Side, train: Train, jobs: int) -> tuple[float, float]:
    """Return the seconds of a trial's start and end, and of an update, with `jobs` at once."""

    def timed(updates: int, first_seed: int) -> float:
        share = updates / side.values["train"]["steps"]
        asked = [
            trial(f"{side.name},", side.values, first_seed + i, share, {}) for i in range(jobs)
        ]
        started = time.monotonic()
        train(asked)
        return time.monotonic() - started

    timed(1, 0)  # the workers start and import torch
    short, long = timed(_SHORT, jobs), timed(_LONG, 2 * jobs)
    each = max(0.0, long - short) / (_LONG - _SHORT)
    return max(0.0, short - _SHORT * each), each


def _seconds(
    trials: Mapping[str, TrainingTrial], costs: Mapping[str, tuple[float, float]], jobs: int
) -> float:
    total = 0.0
    for one in trials.values():
        begin, each = costs[purpose_of(one)[1]]
        total += begin + each * one.values["train"]["steps"]
    return total / jobs
