"""Accuracy of the loss forecasts of `dynamics-*` on small runs, compared with the current loss.

    python bench/forecast.py --traces DIR [--model linear|mlp|rssm] [--json PATH] [--seeds N N …]

DIR stores the runs. A missing run is trained first. A forecast uses only the losses so far, and the
dynamics model learns nothing before the run. Two answers are scored. The first answer is the
plugin's forecast, or the current loss if the plugin gives no forecast. The second answer is the
loss that the plugin computes internally, even when the plugin gives no forecast.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from predictions.traces import STEPS, TASKS, config_of, trace

from neaptide_plugins.dynamics_linear.config import DynamicsLinearConfig
from neaptide_plugins.dynamics_linear.forecaster import LinearForecaster
from neaptide_plugins.dynamics_mlp.config import DynamicsMlpConfig
from neaptide_plugins.dynamics_mlp.forecaster import MlpForecaster
from neaptide_plugins.dynamics_rssm.config import DynamicsRssmConfig
from neaptide_plugins.dynamics_rssm.forecaster import RssmForecaster
from neaptide_plugins.lr_schedule.config import LrScheduleConfig
from neaptide_plugins.lr_schedule.lengths import curve_of
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neaptide_toolkit.forecasting.forecaster import Forecaster

EVERY = 7
"""Number of updates between two scored forecasts. It is not a multiple of the plugin's sampling
interval."""
FIRST = 60
PERSISTENCE = (8, 16, 32, 64)
"""Numbers of newest losses whose mean is used as the current loss. All numbers are tried, and the
smallest error is reported."""
MODELS: dict[str, Callable[[Callable[[int], float], int, int], Forecaster[Any]]] = {
    "linear": partial(LinearForecaster, DynamicsLinearConfig()),
    "mlp": partial(MlpForecaster, DynamicsMlpConfig()),
    "rssm": partial(RssmForecaster, DynamicsRssmConfig()),
}
"""Makers of forecasters with default settings: of the schedule, the updates and a seed."""


def errors(model: str, task: str, seed: int, traces: Path) -> dict[int, dict[str, Any]]:
    """Return the root mean squared errors and other figures of one run, by horizon in updates."""
    losses = trace(task, seed, traces)["losses"]
    schedule = LrScheduleConfig(**config_of(task, seed)["plugins"]["lr-schedule"])
    rate = curve_of(schedule, STEPS)
    follower = MODELS[model](rate.factor, STEPS, seed)
    config = follower.config
    rows: dict[int, list[dict[str, float]]] = {horizon: [] for horizon in config.horizons}
    for update, loss in enumerate(losses, start=1):
        follower.take(loss)
        if update >= FIRST and update % EVERY == 0:
            for horizon in config.horizons:
                centre = update + horizon
                if centre + config.around <= len(losses):
                    rows[horizon].append(_row(follower, losses, update, horizon))
    return {horizon: _summary(made) for horizon, made in rows.items()}


def seconds(model: str, losses: Sequence[float]) -> float:
    """Return the seconds per update that the plugin needs to record losses, without forecasts."""
    follower = MODELS[model](lambda _: 1.0, len(losses), 0)
    started = time.perf_counter()
    for loss in losses:
        follower.take(loss)
    return (time.perf_counter() - started) / len(losses)


def _row(
    follower: Forecaster[Any], losses: Sequence[float], update: int, horizon: int
) -> dict[str, float]:
    around, now = follower.config.around, follower.level.now
    came = losses[update + horizon - around - 1 : update + horizon + around]
    target = math.fsum(came) / len(came)
    given = follower.forecast(horizon)
    always = given or follower.outcome(horizon)
    assert always is not None, "the losses are finite"
    stays = {
        f"stays_{count}": math.fsum(losses[update - count : update]) / count - target
        for count in PERSISTENCE
        if count <= update
    }
    return {
        "update": update,
        "given": (given.loss if given else now) - target,
        "always": always.loss - target,
        "stays": now - target,
        "single": always.loss - losses[update + horizon - 1],
        "single_stays": now - losses[update + horizon - 1],
        "consulted": float(given is not None),
        "within": float(abs(given.loss - target) <= given.error) if given else math.nan,
        **stays,
    }


def _summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    def rmse(name: str, some: Sequence[dict[str, float]] = rows) -> float:
        return math.sqrt(math.fsum(row[name] ** 2 for row in some) / len(some))

    third = len(rows) // 3
    thirds = [rows[place * third :][:third] for place in range(3)]
    spoken = [row for row in rows if row["consulted"]]
    whole = [row for row in rows if f"stays_{PERSISTENCE[-1]}" in row]
    best = min(rmse(f"stays_{count}", whole) for count in PERSISTENCE)
    return {
        "forecasts": len(rows),
        "rmse": rmse("always"),
        "rmse_stays": rmse("stays"),
        "ratio": rmse("always") / rmse("stays"),
        "ratio_by_third": [rmse("always", each) / rmse("stays", each) for each in thirds],
        "ratio_to_best_mean": rmse("always", whole) / best,
        "ratio_of_single_losses": rmse("single") / rmse("single_stays"),
        "spoken": len(spoken) / len(rows),
        "ratio_where_spoken": rmse("given", spoken) / rmse("stays", spoken),
        "ratio_with_silence": rmse("given") / rmse("stays"),
        "within_one_error": statistics.fmean(row["within"] for row in spoken),
    }


def table(found: dict[str, dict[int, dict[int, dict[str, Any]]]]) -> str:
    """Return the result as a table of means over seeds.

    The column `ratio` has the error of the forecast divided by the error of the current loss, and
    the range of this quotient over the seeds.
    """
    columns = (
        "task | ahead | RMSE | it stays | ratio | by third of the run | to the best mean | "
        "of single losses | spoken | where spoken | silence as stays | within 1 error"
    )
    lines = [f"| {columns} |", f"|{'---|' * len(columns.split(' | '))}"]
    for task, seeds in found.items():
        lines += [_line(task, horizon, seeds) for horizon in next(iter(seeds.values()))]
    return "\n".join(lines)


def _line(task: str, horizon: int, seeds: dict[int, dict[int, dict[str, Any]]]) -> str:
    runs = [run[horizon] for run in seeds.values()]
    mean = {
        name: statistics.fmean(run[name] for run in runs)
        for name in runs[0]
        if name != "ratio_by_third"
    }
    ratios = [run["ratio"] for run in runs]
    thirds = (
        statistics.fmean(each)
        for each in zip(*(run["ratio_by_third"] for run in runs), strict=True)
    )
    cells = [
        task,
        str(horizon),
        f"{mean['rmse']:.4f}",
        f"{mean['rmse_stays']:.4f}",
        f"**{mean['ratio']:.2f}** ({min(ratios):.2f}-{max(ratios):.2f})",
        " ".join(f"{each:.2f}" for each in thirds),
        f"{mean['ratio_to_best_mean']:.2f}",
        f"{mean['ratio_of_single_losses']:.2f}",
        f"{mean['spoken']:.0%}",
        f"{mean['ratio_where_spoken']:.2f}",
        f"{mean['ratio_with_silence']:.2f}",
        f"{mean['within_one_error']:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="linear")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        task: {seed: errors(given.model, task, seed, given.traces) for seed in given.seeds}
        for task in TASKS
    }
    print(table(found))
    times = [
        seconds(given.model, trace(task, given.seeds[0], given.traces)["losses"]) for task in TASKS
    ]
    print(f"\n{statistics.median(times) * 1e6:.0f} us an update")
    if given.json:
        document = {
            "machine": facts(),
            "model": given.model,
            "seeds": given.seeds,
            "seconds": times,
            "found": found,
        }
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
