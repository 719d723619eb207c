"""The RAM that `neaptide plan` predicts for runs with layer-streaming, beside what they take.

    python bench/runs/host_peak.py [--ways NAMES] [--sizes WIDTHxBLOCKS,...] [--json PATH]

Models and ways are those of `bench/largest.py`. A trial trains eight steps in a process of its own,
after a run of a small model, so that all code is loaded and all threads have started. What is
measured is the peak of its anonymous memory (`RssAnon` of Linux) beyond what it has then. It is
divided by the prediction without Python and PyTorch: 1 is right, above 1 the run took more.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from largest import TOKENS, WAYS, started
from loads.memory import AnonymousPeak

import neaptide
from neaptide_toolkit.machine.facts import facts

STEPS = 8
MIB = 2**20
SMALL = 64
NEAR = 1.05
RAM = 1024.0
MEASURED = "AdamW, float32", "AdamW, split masters", "adam8bit, bfloat16"
OF_PYTHON = "Python, PyTorch and data"


def options(way: str, width: int, blocks: int) -> dict[str, Any]:
    """Return the options of a model."""
    return {"blocks": blocks, "width": width, "dtype": WAYS[way][0]}


def trial(way: str, width: int, blocks: int) -> int:
    """Train in this process; return the peak of its anonymous memory beyond what it had."""
    dtype, _, make = WAYS[way]

    def train(width: int, blocks: int) -> Any:
        step = started(make(options(way, width, blocks)))
        for _ in range(STEPS):
            step(torch.ones(TOKENS, width, dtype=getattr(torch, dtype)))
        return step

    train(SMALL, 2)
    gc.collect()
    with AnonymousPeak() as memory:
        train(width, blocks)
    return memory.peak - memory.before


def predicted(way: str, width: int, blocks: int) -> int:
    """Return the bytes that the plan predicts, without Python and PyTorch."""
    found = neaptide.plan(None, WAYS[way][2](options(way, width, blocks)), "cpu", ram=RAM)
    kinds = found.tiers["RAM"].kinds
    return sum(bytes_ for kind, bytes_ in kinds.items() if kind != OF_PYTHON)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ways", default=";".join(MEASURED), help="names, with ; between them")
    parser.add_argument("--sizes", default="512x8,512x32,1024x4,1024x14")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trial", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        way, width, blocks = given.trial
        print(trial(way, int(width), int(blocks)))
        return
    print("| | width x blocks | MiB planned | MiB taken | ratio |\n|---|---|---|---|---|")
    rows = []
    for way in given.ways.split(";"):
        for size in given.sizes.split(","):
            width, blocks = map(int, size.split("x"))
            command = [sys.executable, __file__, "--trial", way, str(width), str(blocks)]
            told = subprocess.check_output(command, text=True)  # noqa: S603 - ours
            taken, plan = int(told.split()[-1]), predicted(way, width, blocks)
            rows.append({"way": way, "size": size, "planned": plan, "taken": taken})
            figures = f"{plan / MIB:.0f} | {taken / MIB:.0f} | {taken / plan:.3f}"
            print(f"| {way} | {size} | {figures} |", flush=True)
    ratios = [row["taken"] / row["planned"] for row in rows]
    near = sum(one <= NEAR for one in ratios)
    middle, most = statistics.median(ratios), max(ratios)
    print(f"\nmedian {middle:.3f}, most {most:.3f}, at most {NEAR}: {near} of {len(ratios)}")
    if given.json:
        report = {"machine": facts(), "rows": rows}
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
