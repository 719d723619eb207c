"""A streamed `neaptide run`, killed inside a block's backward, resumes to the bit."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import disks
import pytest

from neaptide.cli import main

TASK = """
import os
import signal

import torch
from torch import nn
from torch.nn.functional import mse_loss

left = int(os.environ.get("BACKWARDS", "-1"))


def count(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(8, 8), nn.Dropout(0.2), nn.BatchNorm1d(8)

    def forward(self, x):
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(count)
        return x + self.norm(self.drop(y)).tanh()


def model():
    module = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(8, 1))
    return module, lambda model, batch: mse_loss(model(batch), batch.sum(1, keepdim=True))


def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 8, generator=generator) for _ in range(10)]
"""
CONFIG = """
[model]
name = "streamed_task:model"
[data]
name = "streamed_task:data"
[train]
steps = 24
device = "cpu"
[run]
checkpoint_every = 5
[phases]
warmup.steps = 3
full.steps = 5
predict = { max_horizon = 5, correction_interval = 1, rise = 10.0 }
correct.steps = 3
[plugins.predictor-drift]
min_window = 4
sample_every = 1
[plugins.layer-streaming]
"""
MEASURED = {"seconds", "device_bytes", "host_bytes"}


def digest(run: Path) -> str:
    found: str = json.loads((run / "summary.json").read_text(encoding="utf-8"))["digest"]
    return found


def steps(run: Path) -> list[dict[str, str]]:
    """Return the rows of steps.csv without what is measured."""
    with (run / "steps.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: row[key] for key in row.keys() - MEASURED} for row in rows]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill that cannot be caught")
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"update": "in_backward", "inputs": "host"},
        {"update": "in_backward", "tier": "disk", "path": disks.folder(), "ram_gib": 0.0},
    ],
    ids=["stored", "in backward", "from a disk"],
)
def test_what_was_killed_goes_on_to_the_bit(
    way: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streamed_task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "streamed.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = [f"plugins.layer-streaming.{key}={value}" for key, value in way.items()]
    command = ["run", "streamed.toml", *(part for each in settings for part in ("--set", each))]
    assert 0 == main([*command, "--set", "run.dir=whole"])
    killed = subprocess.run(
        [sys.executable, "-m", "neaptide", *command, "--set", "run.dir=killed"],
        env={**os.environ, "BACKWARDS": "50", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert -signal.SIGKILL == killed.returncode, killed.stderr
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert 0 == main([*command, "--set", "run.dir=killed", "--resume", "auto"])
    assert digest(tmp_path / "whole") == digest(tmp_path / "killed")
    assert steps(tmp_path / "whole") == steps(tmp_path / "killed")
    assert not [*Path(disks.folder()).glob(".neaptide-*")]
