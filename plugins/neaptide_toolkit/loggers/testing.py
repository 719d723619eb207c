"""For tests of loggers: a short run through all phases, and the curves that it must have."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from neaptide import HybridTrainer
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

from .logger import points_of_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from neaptide.io.summary import Summary

Curves = dict[str, list[tuple[int, float]]]

_PHASES = {
    "warmup": {"steps": 2},
    "full": {"steps": 4},
    "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
    "correct": {"steps": 2},
}
_COLUMNS = {"loss": "train/loss", "grad_norm": "train/grad_norm"}


class StoppedError(Exception):
    """Ends a short run before its end."""


def short_run(
    directory: Path | None,
    plugins: Mapping[str, Any],
    *,
    steps: int = 12,
    stop_after: int | None = None,
    resume: str | None = None,
    observe: Callable[[Any, Any], None] | None = None,
    allow_changes: bool = False,
) -> Summary:
    """Train the tiny task through all phases, with jumps, evaluations and checkpoints.

    Args:
        directory: of the run; None: the run writes no files.
        plugins: tables of plugins, such as `{"wandb": {"mode": "offline"}}`.
        steps: updates of the whole run.
        stop_after: the update after which StoppedError ends the run.
        resume: `"auto"` continues from the newest checkpoint; there is one every fourth update.
        allow_changes: continue with other settings.
        observe: called with the result and the state after each step.
    """
    task = tiny_task(0)
    run = {"log_every": 2, "checkpoint_every": 4}
    config = {
        "run": run if directory is None else {**run, "dir": str(directory)},
        "train": {"steps": steps, "grad_norm": True},
        "eval": {"every": 5},
        "phases": _PHASES,
        "plugins": {"predictor-drift": {"min_window": 4, "sample_every": 1}, **plugins},
    }

    def observed(result: Any, state: Any) -> None:
        if observe is not None:
            observe(result, state)
        if state.step == stop_after:
            raise StoppedError

    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        return trainer.fit(
            task.batches,
            validation=task.batches[10:12],
            observe=observed,
            resume=resume,
            allow_changes=allow_changes,
        )


def curves_of(
    directory: Path, *, learning_rate: str = "train/learning_rate"
) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that a logger must have, as the records of the run have them.

    Times, memory and jumps are left out.
    """
    found: Curves = defaultdict(list)
    with (directory / "steps.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            step = int(row["step"])
            found[f"loss/{row['phase']}"].append((step, float(row["loss"])))
            for column, name in _COLUMNS.items():
                if row["was_predicted"] == "false" and row[column]:
                    found[name].append((step, float(row[column])))
    for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        step = values.pop("step")
        del values["phase"]
        for name, value in points_of_metrics(values, learning_rate).items():
            found[name].append((step, value))
    return dict(found)
