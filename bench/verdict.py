"""Compare the verdicts of `delayed-verdict` on jumps with the true gain of the jumps.

    python bench/verdict.py [--json PATH] [--tasks NAME …] [--seeds N N …]

A jump is one change of the weights that replaces several updates. A verdict estimates whether a
jump reduced the loss. At six updates of a run, four branches continue on the same batches. One
branch has no jump. Each of the other three begins with a different jump: half of the weights' drift
over a window, noise of the same size, or the reversed drift. The weights of each branch are
averaged over the branch's updates 26-50. The truth is the loss without the jump minus the loss with
the jump, over 64 batches that are never trained on. A verdict uses only one branch, and the four
batches that follow the branch's 50 updates.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from predictions.branches import KINDS, Judged, judged
from predictions.traces import TASKS

from neaptide_plugins.delayed_verdict.pacing import JumpVerdict, verdict_of
from neaptide_plugins.delayed_verdict.trial import JumpTrial
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

CERTAINTY = 2.0


def said(jump: Judged, contrast: str) -> tuple[float, JumpVerdict]:
    """Return a jump's gain and verdict; `contrast` names the formula for the gain."""
    rows = [row if contrast == "mirrored" else row[:2] for row in jump.losses]
    trial = JumpTrial(jump.update, 1, "high", None, losses=rows)
    return trial.gain, verdict_of(trial.gain, trial.error, CERTAINTY)


def summed(gains: Sequence[float]) -> dict[str, float]:
    """Return the mean of the gains, and the standard error of this mean."""
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    return {"mean": statistics.fmean(gains), "stderr": error}


def row(task: str, kind: str, contrast: str, jumps: Sequence[Judged]) -> str:
    """Return one line of the table."""
    truths = [statistics.fmean(jump.truth) for jump in jumps]
    gains, verdicts = zip(*(said(jump, contrast) for jump in jumps), strict=True)
    off = [gain - truth for gain, truth in zip(gains, truths, strict=True)]
    errors = math.sqrt(statistics.fmean(each * each for each in off))
    counted = [verdicts.count(each) for each in JumpVerdict]
    wrong = sum(
        verdict is not JumpVerdict.UNCLEAR and (verdict is JumpVerdict.WORTHWHILE) != (truth > 0.0)
        for verdict, truth in zip(verdicts, truths, strict=True)
    )
    cells = [
        task,
        kind,
        contrast,
        f"{1e3 * statistics.fmean(truths):.2f}",
        f"{1e3 * statistics.fmean(gains):.2f}",
        f"{1e3 * errors:.2f}",
        *map(str, counted),
        str(wrong),
    ]
    return f"| {' | '.join(cells)} |"


def table(found: dict[str, list[Judged]]) -> str:
    """Return a table of truth and verdicts by task, kind of jump and contrast."""
    columns = (
        "task | jump | contrast | truth | said | RMS error | "
        f"{' | '.join(each.value for each in JumpVerdict)} | wrong"
    )
    lines = [f"| {columns} |", f"|{'---|' * len(columns.split(' | '))}"]
    for task, jumps in found.items():
        for kind in KINDS:
            some = [jump for jump in jumps if jump.kind == kind]
            lines += [row(task, kind, contrast, some) for contrast in ("mirrored", "undone")]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["byte-gpt, linear", "digits-cnn, linear"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(given.tasks) - set(TASKS):
        parser.error(f"no task {sorted(unknown)}; there is {list(TASKS)}")
    found: dict[str, list[Judged]] = {
        task: [jump for seed in given.seeds for jump in judged(task, seed)] for task in given.tasks
    }
    print(table(found))
    if given.json:
        rows: dict[str, Any] = {
            task: [{**attrs.asdict(jump), "truth": summed(jump.truth)} for jump in jumps]
            for task, jumps in found.items()
        }
        document = {"machine": facts(), "seeds": given.seeds, "found": rows}
        given.json.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
