"""Runs of a small task in several processes, and what they have written."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import warm
from several import run_together

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TASK = """
import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def model(dropout=0.0, apart="", norm=False):
    if apart == "start":
        torch.manual_seed(int(os.environ["RANK"]))
    layers = [nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 3)]
    layers += [nn.BatchNorm1d(3)] * norm
    passes = []

    def loss_fn(model, batch):
        passes.append(1)
        if dropout and model.training:
            with open("drawn-" + os.environ["RANK"], "a") as file:
                print(torch.rand(()).item(), file=file)
        if apart == "later" and len(passes) == 9:
            with torch.no_grad():
                model[3].bias[1] += 1e-6 * int(os.environ["RANK"])
        return cross_entropy(model(batch[0]), batch[1])

    return nn.Sequential(*layers), loss_fn


class Failing:
    def __init__(self, loader, ranks):
        self.loader, self.ranks = loader, ranks

    def __iter__(self):
        for number, batch in enumerate(self.loader):
            if number == 2 and "r" + os.environ["RANK"] in self.ranks:
                raise OSError("the disk is gone")
            yield batch


def data(batch_size, failing="", apart=False):
    if apart:
        torch.manual_seed(int(os.environ["RANK"]))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(41, 8, generator=generator)
    y = torch.randint(3, (41,), generator=generator)
    train = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    validation = DataLoader(TensorDataset(x[:9], y[:9]), batch_size=batch_size)
    return Failing(train, failing) if failing else train, validation
"""
CONFIG = """
[model]
name = "several_task:model"
[data]
name = "several_task:data"
[train]
steps = 24
batch_size = 10
device = "cpu"
[run]
checkpoint_every = 8
[eval]
every = 8
[phases]
warmup.steps = 3
full.steps = 5
predict = { max_horizon = 5, correction_interval = 1, rise = 10.0 }
correct.steps = 3
[plugins.predictor-drift]
min_window = 4
sample_every = 1
[plugins.gradient-accumulation]
steps = 2
[plugins.sharding]
"""
RUN = ("-m", "neaptide", "run", "several.toml", "--quiet")


def trained(
    folder: Path, size: int, name: str, *arguments: str, nodes: int = 1, run: Sequence[str] = RUN
) -> Path:
    """Train in `size` processes, into the run directory `name`; return it."""
    given = [*run, f"--set=run.dir={name}", *arguments]
    if size > 1:
        done = run_together(size, given, cwd=folder, nodes=nodes)
    else:
        done = [warm.run(given, cwd=folder)]
    assert [0] * size == [one.returncode for one in done], [one.stderr for one in done]
    assert [""] * (size - 1) == [one.stdout + one.stderr for one in done[1:]]
    return folder / name


def failed(
    folder: Path, size: int, *arguments: str, run: Sequence[str] = RUN, **more: Any
) -> list[warm.Done]:
    """Train in `size` processes; return what they printed. A hang is an error."""
    return run_together(size, [*run, *arguments], cwd=folder, timeout=90, **more)


def rows(directory: Path) -> list[tuple[str, float]]:
    """Return phase and loss of each row."""
    with (directory / "steps.csv").open(newline="") as file:
        return [(row["phase"], float(row["loss"])) for row in csv.DictReader(file)]


def digest(directory: Path) -> str:
    """Return the digest of the state at the end of a run."""
    summary: dict[str, str] = json.loads((directory / "summary.json").read_text())
    return summary["digest"]


def validation(directory: Path) -> list[float]:
    """Return the losses of the evaluations."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [one["val_loss"] for one in map(json.loads, lines) if "val_loss" in one]


def stopped_at_16(directory: Path, name: str) -> str:
    """Copy a run as it was at its checkpoint of update 16; return the name of the copy."""
    shutil.copytree(directory, directory.parent / name)
    shutil.rmtree(directory.parent / name / "checkpoints" / "step-00000024")
    return name


def require_close(one: Path, other: Path) -> None:
    """Require the losses and phases of one process, up to the rounding of sums."""
    before, after = rows(one), rows(other)
    assert [phase for phase, _ in before] == [phase for phase, _ in after]
    assert [loss for _, loss in before] == pytest.approx([loss for _, loss in after], rel=1e-6)
    assert validation(one) == pytest.approx(validation(other), rel=1e-6)


def begun(
    folder: Path, name: str, *more: str, size: int = 2
) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start a long run with --nproc; return its process, and those of its ranks, in a step."""
    command = [sys.executable, *RUN, f"--nproc={size}", f"--set=run.dir={name}"]
    long = ["--set=train.steps=1000000", "--set=eval.every=0", "--set=run.checkpoint_every=0"]
    process = subprocess.Popen(
        [*command, *long, *more],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    written = folder / name / "steps.csv"
    while not (written.is_file() and written.stat().st_size > 200):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        if "neaptide" in child.cmdline():
            found[child.environ()["RANK"]] = child.pid
    return process, found
