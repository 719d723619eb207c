"""A run that goes out of the device's memory tells which setting would have avoided it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support import some

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
version = 1
[model]
name = "neaptide_toolkit.testing.kinds:deep"
options = {layers = 8, width = 256}
[data]
name = "neaptide_toolkit.testing.kinds:sequences"
options = {width = 256, length = 1024}
[train]
batch_size = 8
steps = 2
device = "cuda"
"""


def run(folder: Path, capacity: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.toml").write_text(CONFIG)
    simulated = ["-W", "ignore", "-m", "simulated_gpu", "--capacity", str(capacity)]
    command = [sys.executable, *simulated, "-m", "neaptide", "run", "mine.toml", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_setting_that_it_names_avoids_it(tmp_path: Path) -> None:
    done = run(tmp_path, 0.6)
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: out of memory: ")
    found = re.search(r"; by the plan it fits with (plugins\.[^;]*); the plan was right: ", line)
    assert found is not None, line
    assert re.search(r"the run needs 1\.\d GiB of the device, which has 1\.\d GiB; ", line)
    again = run(tmp_path, 0.6, "--set", found[1], "--set", "run.dir=again")
    assert again.returncode == 0, again.stderr


def test_a_run_that_plans_nothing_gives_general_advice(tmp_path: Path) -> None:
    done = run(tmp_path, 0.6, "--set", "run.plan=off")
    assert done.returncode == 4
    assert "; lower train.batch_size, or enable a plugin that saves memory\n" in done.stderr


LENGTHS = """
import torch


def lengths(width, length):
    short = torch.zeros(8, 16, width)
    return [short, short, short, short.repeat(1, length // 16, 1)]
"""


@pytest.mark.slow
def test_a_plan_that_has_not_seen_the_largest_batch_is_said_to_be_wrong(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LENGTHS)
    data = ("--set", "data.name=own:lengths", "--set", "data.options.length=65536")
    done = run(tmp_path, 1.5, *data, "--set", "run.plan=always", "--set", "train.steps=4")
    assert done.returncode == 4, done.stderr
    assert "not planned" not in done.stderr  # and it was not refused: the plan said that it fits
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: out of memory: CUDA out of memory. Tried to allocate ")
    found = re.search(
        r"; the plan was wrong: it says (\d+\.\d) MiB of the device, and (\d\.\d) GiB were not "
        r"enough, \d+% more$",
        line,
    )
    assert found is not None, line
    assert float(found[1]) < 1.5 * 1024
    assert float(found[2]) >= 1.5


@pytest.mark.parametrize("plan", some(["always", "auto"]))
def test_a_run_that_does_not_fit_the_device_is_refused(tmp_path: Path, plan: str) -> None:
    # With "auto" the model, of 16 MiB, is large beside a device of 0.1 GiB.
    capacity = 0.1 if plan == "auto" else 0.6
    done = run(tmp_path, capacity, "--set", f"run.plan={plan}")
    assert done.returncode == 3, done.stderr
    assert "error: does not fit: the device needs 1." in done.stderr
    assert ("; nearest: plugins." in done.stderr) == (plan == "always")
    assert {path.name for path in tmp_path.glob("runs/*/*")} <= {".lock"}
