"""The memory that `neaptide plan` predicts, beside the memory that a run takes.

    python bench/plan.py [--device cpu|cuda] [--json PATH] [--some N] [--only TEXT]

Every case trains three steps in a process of its own. On the CPU, torch's profiler counts the bytes
of its allocator, without the data. `cuda` is the simulated GPU of contrib where it is installed,
and else a GPU; their allocator counts. The prediction is that of `neaptide_toolkit.dry_run`, made
here, which `neaptide plan` prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from planning.cases import cases, settings
from planning.estimates import of_others

from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run

MIB = 2**20
ESTIMATES = {"tensors": "plan", "accelerate": "accelerate", "DeepSpeed": "DeepSpeed"}
"""Ratios to what was measured, and whose they are."""
LOW, NEAR = 0.9, 0.05
"""A prediction below this part of what was measured is too low; the goal is to be this near."""


def compared(model: str, stack: str, device: str) -> dict[str, Any]:
    """Return the measured and the predicted bytes of one case."""
    given = settings(model, stack, device)
    script = str(Path(__file__).parent / "planning" / "cases.py")
    command = [sys.executable, script, device, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        return {"model": model, "stack": stack, "failed": reason}
    found = json.loads(done.stdout.splitlines()[-1])
    given["train"]["device"] = "cpu"
    log = dry_run(configured(given, ())[0], (), device).allocations
    places: Any = ("device",) if device == "cuda" else ("device", "host")
    predicted = {
        "tensors": max(peak.bytes for peak in log.peaks(*places).values()),
        "pages": max(peak.bytes for peak in log.peaks("pages").values()),
        "reserved": log.reserved(),
    }
    others = of_others(found.pop("parameters"), streamed="streaming" in stack)
    ratios = {name: predicted[name] / bytes_ for name, bytes_ in found.items() if bytes_}
    ratios |= {name: bytes_ / found["tensors"] for name, bytes_ in others.items()}
    return {"model": model, "stack": stack, "measured": found, "ratios": ratios}


def main() -> None:
    """Compare all cases, print a table and the summary, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json")
    parser.add_argument("--some", type=int, default=0, help="every N-th case only")
    parser.add_argument("--only", default="", help="models with this in their names only")
    options = parser.parse_args()
    rows = []
    print(
        "| model | plugins | measured | plan | accelerate | DeepSpeed |\n|---|---|---|---|---|---|"
    )
    chosen = [case for case in cases() if options.only in case[0]]
    for model, stack in chosen[:: options.some or 1]:
        row = compared(model, stack, options.device)
        if "failed" in row:
            print(f"| {model} | {stack} | does not run: {row['failed']} | | | |", flush=True)
            continue
        rows.append(row)
        size, ratios = row["measured"]["tensors"] / MIB, row["ratios"]
        told = " | ".join(f"{ratios[name]:.3f}" for name in ESTIMATES)
        print(f"| {model} | {stack} | {size:.1f} MiB | {told} |", flush=True)
    for name, said in ESTIMATES.items():
        print(f"\n{said}: {summary([row['ratios'][name] for row in rows])}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def summary(ratios: list[float]) -> str:
    """Return how near the predictions are, in one line."""
    near = sum(abs(one - 1) <= NEAR for one in ratios)
    low = sum(one < LOW for one in ratios)
    return (
        f"{len(ratios)} cases: {near} within 5 %, {low} more than 10 % too low; "
        f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
