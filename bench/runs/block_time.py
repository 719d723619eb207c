"""Measure the time of the training thread for one block and step, streamed and resident.

    python bench/runs/block_time.py [--rounds N] [--few 4] [--many 64] [--json PATH]

The blocks are so small that nearly all of this time is Python's and PyTorch's own. Two models of
each subject train in one process, with few and with many blocks; the difference of their steps is
divided by the difference of their blocks. In each round all subjects run one after the other. The
time is the thread's CPU time, which other processes change less than the time of a clock. The table
shows medians and quartiles over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from scaling.decoder import Shape
from streaming_ways.ways import PLAIN, RECOMPUTED, WAYS, Size, Subject

from neaptide_toolkit.machine.facts import facts

_WARM_UP = 6
_STEPS = 5
_FEWEST_ROUNDS = 2


def subjects(blocks: int) -> dict[str, Subject]:
    """Return a trainer for each subject, of a decoder with so many blocks of width 32."""
    plugins: dict[str, dict[str, Any]] = {
        PLAIN: {},
        RECOMPUTED: {"activation-checkpointing": {"interval": 1}},
    }
    for way in WAYS:
        if way.micro_batches == 1 and not way.half_resident:
            plugins[way.name.partition(";")[0]] = way.plugins(blocks)
    size = Size(f"{blocks} x 32", Shape(blocks, 32, 2, 64, 64), 2, 8)
    return {name: Subject(size, each) for name, each in plugins.items()}


def step_time(subject: Subject) -> float:
    """Return the seconds of this thread for one step."""
    start = time.thread_time()
    for _ in range(_STEPS):
        subject.step()
    return (time.thread_time() - start) / _STEPS


def measure(few: int, many: int, rounds: int) -> dict[str, list[float]]:
    """Return, by subject, the microseconds for a block and a step, one figure per round."""
    small, large = subjects(few), subjects(many)
    for subject in (*small.values(), *large.values()):
        for _ in range(_WARM_UP):
            subject.step()
    taken: dict[str, list[float]] = {name: [] for name in small}
    for _ in range(rounds):
        for name, found in taken.items():
            more = step_time(large[name]) - step_time(small[name])
            found.append(1e6 * more / (many - few))
    for subject in (*small.values(), *large.values()):
        subject.trainer.close()
    return taken


def row(name: str, taken: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures of a subject, in microseconds for a block and a step."""
    low, middle, high = statistics.quantiles(taken[name], n=4, method="inclusive")
    over = [one - base for one, base in zip(taken[name], taken[RECOMPUTED], strict=True)]
    return {
        "subject": name,
        "us": middle,
        "quartiles": [low, high],
        "us_over_resident_recompute": statistics.median(over),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--few", type=int, default=4, help="blocks of the small models")
    parser.add_argument("--many", type=int, default=64, help="blocks of the large models")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures here")
    options = parser.parse_args()
    if options.rounds < _FEWEST_ROUNDS or not 0 < options.few < options.many:
        parser.error(f"give at least {_FEWEST_ROUNDS} rounds, and fewer blocks than many")
    torch.set_num_threads(1)
    taken = measure(options.few, options.many, options.rounds)
    rows = [row(name, taken) for name in taken]
    print("| subject | us a block and step | quartiles | over resident, recompute |")
    print("|---|---|---|---|")
    for each in rows:
        low, high = each["quartiles"]
        over = each["us_over_resident_recompute"]
        print(f"| {each['subject']} | {each['us']:.0f} | {low:.0f}-{high:.0f} | {over:.0f} |")
    if options.json is not None:
        found = {"machine": facts(), "few": options.few, "many": options.many, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
