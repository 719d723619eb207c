"""How each plugin trains beside `sharding`: in two processes or four, compared with one.

`python tests/helpers/company_of_processes.py` prints the table of docs/many-gpus.md. It needs the
simulated GPU for the last column.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import several
import warm
from acting import ACTING

from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.plugin import PluginSpec

STEPS = 24
STAGES = ("replicate", "1", "3", "hybrid")
"""Stage 2 has the bits of stage 3, as another test holds. Hybrid is four processes on two nodes."""
IN_RAM = "in RAM"
"""Stage 3 with the rows in pinned RAM, in two processes with a simulated GPU each."""
CAST = "cast"
"""Stage 3 with weights gathered in bfloat16, in two processes."""
SLOW_THERE = ("flash-attention",)
"""Takes minutes on the simulated GPU, whose kernels are interpreted."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "many-gpus.md"
EXACT = 1e-6
"""Relative; what the page says of plugins that compute in float32."""
PROGRAM = """
import runpy
import sys

import simulated_gpu

simulated_gpu.configure(devices=int(sys.argv[1]), capacity=1 << 30)
sys.argv = ["neaptide", "run", *sys.argv[2:], "--quiet"]
try:
    runpy.run_module("neaptide", run_name="__main__", alter_sys=True)
finally:
    if found := simulated_gpu.races():
        sys.exit("\\n".join(found))
"""
"""Runs a configuration on a machine with so many GPUs. Races are errors."""
OWN: dict[str, dict[str, Any]] = {
    **ACTING,
    "fused-layers": {"min_elements": 1},
    "gradient-accumulation": {"steps": 3},
    "low-precision-backward": {
        **ACTING["low-precision-backward"],
        "min_elements": 16,
        "min_rows": 1,
    },
    "residual-correction": {"observe": 1, "entries": 2},
}


def config_of(name: str) -> dict[str, Any]:
    """Return the configuration of a run of a small decoder with the plugin `name`."""
    spec = installed_plugins()[name]
    plugins = {name: OWN.get(name, {}), "sharding": {}}
    if "predictor" not in spec.claims:
        plugins = {"predictor-drift": OWN["predictor-drift"], **plugins}
    optimizer = "adamw"
    if spec.schemes:
        optimizer = name
        del plugins[name]
    return {
        "model": {
            "name": "builtin:byte-gpt",
            "options": {"layers": 2, "width": 32, "heads": 2, "context": 32, "dropout": 0.0},
        },
        "data": {"name": "builtin:python-stdlib", "options": {"context": 32}},
        "optimizer": {"name": optimizer},
        "train": {"steps": STEPS, "batch_size": 6, "device": "cpu", "threads": 1},
        "eval": {"every": 12, "batches": 2},
        "run": {"checkpoint_every": 12, "progress": "quiet"},
        "phases": {
            "warmup": {"steps": 3},
            "full": {"steps": 5},
            "predict": {"max_horizon": 4, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 3},
        },
        "plugins": plugins,
    }


def losses_of(directory: Path) -> list[tuple[str, float]]:
    """Return phase and loss of each row of steps.csv."""
    with (directory / "steps.csv").open(newline="") as rows:
        return [(row["phase"], float(row["loss"])) for row in csv.DictReader(rows)]


def validation_of(directory: Path) -> list[float]:
    """Return the losses of the evaluations."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line["val_loss"] for line in lines if "val_loss" in line]


def compared(name: str, folder: Path, stages: Sequence[str] = STAGES) -> list[str]:
    """Return how a plugin trains in several processes, for each stage.

    That is the largest difference of a loss from one process, or why it does not train.
    """
    (folder / "run.json").write_text(json.dumps(config_of(name)), encoding="utf-8")
    (folder / "on_gpus.py").write_text(PROGRAM, encoding="utf-8")
    gpus = stages == (IN_RAM,)
    command = ["-m", "neaptide", "run", "run.json", "--quiet"]
    if gpus:
        command = ["on_gpus.py", "2", "run.json", "--set=train.device=auto"]
    alone = warm.run([*command, "--set=run.dir=one"], cwd=folder)
    assert alone.returncode == 0, alone.stderr
    return [_told(folder, command, stage) for stage in stages]


def _told(folder: Path, command: Sequence[str], stage: str) -> str:
    own = [f"--set=run.dir=stage-{stage}", f"--set=plugins.sharding.stage={stage}"]
    if stage == IN_RAM:
        own[1:] = ["--set=plugins.sharding.stage=3", "--set=plugins.sharding.offload=pinned"]
    if stage == CAST:
        own[1:] = ["--set=plugins.sharding.stage=3", "--set=plugins.sharding.param_dtype=bfloat16"]
    size, nodes = (4, 2) if stage == "hybrid" else (2, 1)
    both = several.run_together(size, [*command, *own], cwd=folder, nodes=nodes)
    if both[0].returncode:
        (told,) = (one for one in both[0].stderr.splitlines() if one.startswith("error: "))
        why = told.partition(": it ")[2] or told.removeprefix("error: ").partition(" (")[0]
        return f"refused: {why.partition(';')[0]}"
    one, two = losses_of(folder / "one"), losses_of(folder / f"stage-{stage}")
    assert [phase for phase, _ in one] == [phase for phase, _ in two]
    before = [loss for _, loss in one] + validation_of(folder / "one")
    after = [loss for _, loss in two] + validation_of(folder / f"stage-{stage}")
    worst = max(abs(a - b) / abs(a) for a, b in zip(before, after, strict=True))
    return f"{worst:.1e}"


def names() -> list[str]:
    """Return the plugins of the table."""
    usable = installed_plugins().usable().values()
    return sorted({spec.name for spec in usable if not _builds_inputs(spec)} - {"sharding"})


def _builds_inputs(spec: PluginSpec) -> bool:
    """Return whether a plugin builds models or data: these are divided as all others are."""
    return any(one.startswith(("model:", "data:")) for one in spec.schemes)


def table() -> dict[str, list[str]]:
    """Return the table of the page: the cells of each plugin, the last one of rows in RAM."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = (line.strip("| \n").split(" | ") for line in lines)
    return {row[0]: row[1:] for row in rows if len(row) == 2 + len(STAGES) and row[0] in names()}


def main() -> None:
    """Print the table; with names as arguments, their rows."""
    for name in sys.argv[1:] or names():
        with tempfile.TemporaryDirectory() as folder:
            found = compared(name, Path(folder))
            slow = name in SLOW_THERE
            found += ["not tried"] if slow else compared(name, Path(folder), (IN_RAM,))
            cells = " | ".join([name, *found])
            sys.stdout.write(f"| {cells} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
