"""Time that prediction adds to training, compared with training without prediction.

    python bench/predict_cost.py [--json PATH] [--updates N] [--block N] [--device cuda] [--small]

The task is predict/byte-gpt.toml with the default phases; `--small` has one layer and batches of 8.
All subjects run in one process. Every subject makes the same number of updates on the same batches,
in alternating blocks of updates. The order of subjects changes from round to round. Jumps
(predicted updates) are rare, so CPU seconds are summed over a whole run; on a GPU, seconds until
its work is done. The added time is computed from the ratio of two such sums: with and without
prediction. The interval is from the 5th to the 95th percentile of this ratio over bootstrap samples
of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from predictions.refusing import REFUSE

from neaptide import HybridTrainer
from neaptide.run.assembly import build_data
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASK = Path(__file__).parent / "predict" / "byte-gpt.toml"
DRIFT: dict[str, Any] = {"predictor-drift": {}}
SEARCH: dict[str, Any] = {"predictor-drift": {"search_batches": 2}}
PLAIN = "no predictor"
SUBJECTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "drift, every jump refused": DRIFT,
    "drift": DRIFT,
    "drift, search_batches = 2": SEARCH,
    "drift, delayed-verdict": {**DRIFT, "delayed-verdict": {}},
    "drift, dynamics-linear": {**DRIFT, "dynamics-linear": {}},
    "drift, dynamics-mlp": {**DRIFT, "dynamics-mlp": {}},
    "drift, dynamics-rssm": {**DRIFT, "dynamics-rssm": {}},
    "drift, delayed-verdict, adaptive-phases": {
        **DRIFT,
        "delayed-verdict": {},
        "adaptive-phases": {},
    },
    "drift, residual-correction": {**DRIFT, "residual-correction": {}},
    "drift, all three": {**SEARCH, "delayed-verdict": {}, "dynamics-linear": {}},
}
DRAWS = 2000


@attrs.define(eq=False)
class Subject:
    """A training run, and the times measured so far."""

    trainer: HybridTrainer
    clock: Callable[[], float]
    seconds: list[float] = attrs.field(factory=list)
    """Seconds of `clock` for each block of updates."""
    accepted: int = 0
    refused: int = 0
    in_jumps: float = 0.0
    """Wall-clock seconds of the Predict steps in which a plugin proposed an update."""

    def train(self, batches: Sequence[Any]) -> None:
        """Make one block of updates."""
        began = self.clock()
        results = [self.trainer.step(batch) for batch in batches]
        self.seconds.append(self.clock() - began)
        for jump in (result.jump for result in results):
            if jump is not None:
                self.accepted += jump.accepted
                self.refused += not jump.accepted
                self.in_jumps += jump.seconds


def seconds_of_gpu() -> float:
    """Wait until the GPU has done all its work; return the time."""
    torch.cuda.synchronize()
    return time.perf_counter()


def made(name: str, updates: int, device: str, *, small: bool) -> Subject:
    """Return a subject that has made no update yet."""
    config = tomllib.loads(TASK.read_text(encoding="utf-8"))
    if small:
        config["model"]["options"]["layers"] = 1
        config["train"]["batch_size"] = 8
    config["train"] |= {"steps": updates, "device": device}
    config["plugins"] = {**config["plugins"], **SUBJECTS[name]}
    more = [REFUSE] if name == "drift, every jump refused" else []
    clock = seconds_of_gpu if device == "cuda" else time.process_time
    return Subject(HybridTrainer.from_config(config, plugins=more), clock)


def ratio(subject: Sequence[float], plain: Sequence[float], rounds: Sequence[int]) -> float:
    """Return a subject's time divided by the plain run's time, over the given rounds."""
    return sum(subject[each] for each in rounds) / sum(plain[each] for each in rounds)


def row(name: str, subject: Subject, plain: Subject) -> dict[str, Any]:
    """Return the time that a subject adds, in percent, with its interval."""
    count, drawn = len(plain.seconds), random.Random(0)  # noqa: S311 - a bootstrap, no secret
    over = [
        ratio(subject.seconds, plain.seconds, drawn.choices(range(count), k=count))
        for _ in range(DRAWS)
    ]
    cuts = statistics.quantiles(over, n=20)
    return {
        "subject": name,
        "added_percent": 100 * (ratio(subject.seconds, plain.seconds, range(count)) - 1),
        "interval_percent": [100 * (cuts[0] - 1), 100 * (cuts[-1] - 1)],
        "accepted": subject.accepted,
        "refused": subject.refused,
        "jumps_percent": 100 * subject.in_jumps / sum(plain.seconds),
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--updates", type=int, default=1200)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.updates < 2 * options.block:
        parser.error(f"--updates must be at least twice --block (got {options.updates})")
    torch.set_num_threads(1)
    subjects = {
        name: made(name, options.updates, options.device, small=options.small) for name in SUBJECTS
    }
    plain = subjects[PLAIN]
    data = build_data(plain.trainer.config, plain.trainer.hooks)
    batches = list(itertools.islice(data.train, options.updates))
    order, shuffle = list(subjects), random.Random(0)  # noqa: S311 - an order, no secret
    for start in range(0, options.updates - options.block + 1, options.block):
        shuffle.shuffle(order)
        for name in order:
            subjects[name].train(batches[start : start + options.block])
    for subject in subjects.values():
        subject.trainer.close()
    rows = [row(name, each, plain) for name, each in subjects.items()]
    print(
        "| subject | added | interval | accepted | refused | in jumps |\n|---|---|---|---|---|---|"
    )
    for each in rows:
        low, high = each["interval_percent"]
        print(
            f"| {each['subject']} | {each['added_percent']:+.1f} % | {low:+.1f} … {high:+.1f} % | "
            f"{each['accepted']} | {each['refused']} | {each['jumps_percent']:.1f} % |"
        )
    if options.json:
        figures = {
            "machine": facts(),
            "device": options.device,
            "threads": 1,
            "updates": options.updates,
            "parameters": sum(each.numel() for each in plain.trainer.model.parameters()),
            "milliseconds_an_update": 1e3 * sum(plain.seconds) / options.updates,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
