"""What a pass costs with an optimizer, on the three tasks of predict.py, beside AdamW.

    python bench/plugins/passes.py [--optimizers NAMES] [--tasks NAMES] [--rounds N] [--passes N]
        [--set KEY=VALUE] [--json PATH]

A pass is a forward, a backward and an update, with clipping, schedule and average, as in
predict.py: one thread, and the files of bench/predict/. All optimizers train in one process, on
the same batches. Each round has some passes by each, in an order that changes; the first is not
counted. Times are those of the process's own clock, which stands still while other programs have
the core. Figures are the median, the lowest and the highest of the rounds. Ratios are to AdamW in
the same round. Settings of --set are those of all but AdamW.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neaptide import HybridTrainer
from neaptide.config import load
from neaptide.hooks.registry import installed_plugins
from neaptide.run import assembly
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCH = Path(__file__).resolve().parents[1]
TASKS = ("byte-gpt", "noisy-digits", "photo")
BASE = "adamw"


class Side:
    """A task with an optimizer, ready for the next pass."""

    def __init__(self, task: str, optimizer: str, sets: Sequence[str]) -> None:
        files = [BENCH / "predict" / f"{name}.toml" for name in (task, optimizer)]
        config = load(files, specs=installed_plugins(), sets=sets).config
        self.trainer = HybridTrainer.from_config(config)
        self.batches: Iterator[Any] = iter(assembly.build_data(config, self.trainer.hooks).train)

    def milliseconds(self, passes: int) -> float:
        """Return the mean time of a pass, without reading the batches."""
        batches = list(islice(self.batches, passes))
        started = time.process_time()
        for batch in batches:
            self.trainer.step(batch)
        return (time.process_time() - started) * 1e3 / passes


def measured(task: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a task."""
    names = [BASE, *given.optimizers.split(",")]
    sides = {name: Side(task, name, given.set if name != BASE else ()) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    shuffle = random.Random(0)  # noqa: S311 - an order, no secret
    for number in range(1 + given.rounds):
        for name in shuffle.sample(names, len(names)):
            found = sides[name].milliseconds(given.passes)
            if number:
                taken[name].append(found)
    return [
        {
            "task": task,
            "optimizer": name,
            "ms": times,
            "x": [one / base for one, base in zip(times, taken[BASE], strict=True)],
        }
        for name, times in taken.items()
    ]


def spread(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--optimizers", default="muon", help="files of bench/predict/")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--passes", type=int, default=40, help="passes of each in a round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(BENCH))  # the tasks' models and data are named in a module there
    torch.set_num_threads(1)
    rows = [row for task in given.tasks.split(",") for row in measured(task, given)]
    print("| task | optimizer | ms a pass | x |\n|---|---|---|---|")
    for row in rows:
        times, ratios = spread(row["ms"], ".2f"), spread(row["x"], ".2f")
        print(f"| {row['task']} | {row['optimizer']} | {times} | {ratios} |")
    if given.json:
        report = {"machine": facts(), "set": given.set, "rows": rows}
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
