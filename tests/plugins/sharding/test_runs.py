"""Runs of several processes: as exact as one, and told by one process when they fail."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import warm
from several import free_port, run_together

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")

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


def trained(folder: Path, size: int, name: str, *arguments: str) -> Path:
    """Train in `size` processes, into the run directory `name`; return it."""
    given = [*RUN, f"--set=run.dir={name}", *arguments]
    done = run_together(size, given, cwd=folder) if size > 1 else [warm.run(given, cwd=folder)]
    assert [0] * size == [one.returncode for one in done], [one.stderr for one in done]
    assert [""] * (size - 1) == [one.stdout + one.stderr for one in done[1:]]
    return folder / name


def failed(folder: Path, size: int, *arguments: str, **more: Any) -> list[warm.Done]:
    """Train in `size` processes; return what they printed. A hang is an error."""
    return run_together(size, [*RUN, *arguments], cwd=folder, timeout=90, **more)


def rows(directory: Path) -> list[tuple[str, float]]:
    """Return phase and loss of each row."""
    with (directory / "steps.csv").open(newline="") as file:
        return [(row["phase"], float(row["loss"])) for row in csv.DictReader(file)]


def digest(directory: Path) -> str:
    summary: dict[str, str] = json.loads((directory / "summary.json").read_text())
    return summary["digest"]


def validation(directory: Path) -> list[float]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [one["val_loss"] for one in map(json.loads, lines) if "val_loss" in one]


def stopped_at_16(directory: Path, name: str) -> str:
    """Copy a run as it was at its checkpoint of update 16; return the name of the copy."""
    shutil.copytree(directory, directory.parent / name)
    shutil.rmtree(directory.parent / name / "checkpoints" / "step-00000024")
    return name


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the task and its configuration."""
    made = tmp_path_factory.mktemp("several")
    (made / "several_task.py").write_text(TASK, encoding="utf-8")
    (made / "several.toml").write_text(CONFIG, encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def one(folder: Path) -> Path:
    """Return the run of one process."""
    return trained(folder, 1, "one")


@pytest.fixture(scope="session")
def two(folder: Path) -> Path:
    """Return the run of two processes."""
    return trained(folder, 2, "two")


def require_close(one: Path, other: Path) -> None:
    before, after = rows(one), rows(other)
    assert [phase for phase, _ in before] == [phase for phase, _ in after]
    assert [loss for _, loss in before] == pytest.approx([loss for _, loss in after], rel=1e-6)
    assert validation(one) == pytest.approx(validation(other), rel=1e-6)


def test_two_processes_train_as_one(one: Path, two: Path) -> None:
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in rows(two)}
    require_close(one, two)


def test_what_two_have_saved_they_go_on_with_to_the_bit(folder: Path, two: Path) -> None:
    again = trained(folder, 2, stopped_at_16(two, "again"), "--resume=auto")
    assert rows(two) == rows(again)
    assert digest(two) == digest(again)


def test_what_two_have_saved_four_go_on_with(folder: Path, one: Path, two: Path) -> None:
    require_close(one, trained(folder, 4, stopped_at_16(two, "four"), "--resume=auto"))


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_repeat_has_the_same_bits(folder: Path, dropout: float) -> None:
    option = f"--set=model.options.dropout={dropout}"
    first, second = (trained(folder, 4, f"r{name}-{dropout}", option) for name in "ab")
    third = trained(folder, 4, stopped_at_16(first, f"rc-{dropout}"), option, "--resume=auto")
    assert rows(first) == rows(second) == rows(third)
    assert digest(first) == digest(second) == digest(third)
    if dropout:
        drawn = [(folder / f"drawn-{rank}").read_text().splitlines() for rank in range(4)]
        each = {tuple(numbers[:24]) for numbers in drawn}
        assert 4 * 24 == len({number for numbers in each for number in numbers})


@pytest.mark.slow
def test_what_is_saved_goes_from_4_to_2_to_1_to_3(folder: Path, one: Path) -> None:
    name, steps = "chain", 0
    for size in (4, 2, 1, 3):
        steps += 6
        more = ["--resume=auto", "--allow-changes"] if steps > 6 else []
        trained(folder, size, name, f"--set=train.steps={steps}", *more)
    found = rows(folder / name)
    assert [loss for _, loss in rows(one)] == pytest.approx([loss for _, loss in found], rel=1e-6)


def test_the_other_processes_keep_logs_on_request(folder: Path) -> None:
    directory = trained(folder, 2, "logs", "--set=plugins.sharding.logs=true")
    assert ["1.log"] == [path.name for path in (directory / "ranks").iterdir()]
    lines = (directory / "ranks" / "1.log").read_text().splitlines()
    assert "jump.accepted" in {json.loads(line)["event"] for line in lines}


@pytest.mark.slow
def test_srun_starts_the_processes_of_a_run(folder: Path, two: Path) -> None:
    """The variables are those of SLURM; the processes are started here."""
    port = free_port()

    def step(rank: int) -> dict[str, str]:
        place = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}
        where = {"SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port)}
        return {**os.environ, **place, **where}

    command = [sys.executable, *RUN, "--set=run.dir=srun"]
    started = [
        subprocess.Popen(
            command, cwd=folder, env=step(rank), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in (0, 1)
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    assert [0, 0] == [process.returncode for process in started], told
    assert rows(two) == rows(folder / "srun")
    assert digest(two) == digest(folder / "srun")


def test_one_process_tells_that_the_configurations_differ(folder: Path) -> None:
    other = [*RUN, "--set=optimizer.lr=0.5"]
    done = failed(folder, 2, others={1: other})
    assert [2, 2] == [one.returncode for one in done]
    assert (
        "error: process 1 has optimizer.lr = 0.5, and process 0 has 0.001; start all processes "
        "with the same\n"
    ) == done[0].stderr
    assert "" == done[1].stderr


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("model.options.apart=start", "weights at the start"),
        pytest.param("model.options.apart=later", "weights", marks=pytest.mark.slow),
        pytest.param("data.options.apart=true", "batches", marks=pytest.mark.slow),
    ],
)
def test_what_differs_is_told_at_once(folder: Path, setting: str, told: str) -> None:
    done = failed(folder, 2, f"--set={setting}", "--set=run.dir=apart")
    assert [1, 1] == [one.returncode for one in done]
    assert done[0].stderr.startswith(f"error: the processes have different {told}")
    assert "" == done[1].stderr


def test_a_process_that_fails_tells_and_ends_the_others(folder: Path) -> None:
    done = failed(folder, 2, "--set=data.options.failing=r1", "--set=run.dir=failing")
    assert [1, 1] == [one.returncode for one in done]
    assert done[1].stderr.startswith("error: the training data raised OSError: the disk is gone")
    assert done[1].stderr.endswith("note: raised in process 1 of 2\n")
    assert "" == done[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.batch_size=1", "train.batch_size = 1 is divided among the processes"),
        ("plugins.sharding.enabled=false", "add [plugins.sharding]"),
        ("plugins.layer-streaming.enabled=true", "layer-streaming cannot run on 2 processes"),
        ("model.options.norm=true", "'4' is a BatchNorm"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(
    folder: Path, setting: str, told: str
) -> None:
    done = failed(folder, 2, f"--set={setting}", "--set=run.dir=refused")
    assert [2, 2] == [one.returncode for one in done]
    (line,) = (each for each in done[0].stderr.splitlines() if each.startswith("error: "))
    assert told in line


def begun(folder: Path, name: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start a long run with --nproc 2; return its process, and those of its ranks, in a step."""
    command = [sys.executable, *RUN, "--nproc=2", f"--set=run.dir={name}"]
    more = ["--set=train.steps=1000000", "--set=eval.every=0", "--set=run.checkpoint_every=0"]
    process = subprocess.Popen(
        [*command, *more], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
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


@pytest.mark.slow
def test_a_killed_process_ends_the_run_in_one_line(folder: Path) -> None:
    process, ranks = begun(folder, "killed")
    os.kill(ranks["1"], signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    assert 1 == process.returncode
    line = f"error: process 1 (pid {ranks['1']}) was ended by SIGKILL, so the others were stopped"
    assert told.startswith(line)
    assert 1 == len(told.splitlines())
    assert not any(map(psutil.pid_exists, ranks.values()))


LONG = ("--nproc=2", "--set=run.checkpoint_every=4", "--set=train.steps=400")


@pytest.fixture(scope="session")
def unkilled(folder: Path) -> Path:
    """Return a run of two processes with many checkpoints that nobody kills."""
    command = [sys.executable, *RUN, *LONG, "--set=run.dir=unkilled"]
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    return folder / "unkilled"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_kill_9_of_any_process_at_five_moments_is_told_and_resumed(
    folder: Path, unkilled: Path, part: int
) -> None:
    """Each run goes on from where the last one was killed; at the end nothing is lost."""
    command = [sys.executable, *RUN, *LONG, f"--set=run.dir=killed-{part}", "--resume=auto"]
    draw, told = random.Random(part), []
    for _ in range(5):
        process = subprocess.Popen(
            command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        ranks = _ranks(process)
        time.sleep(draw.uniform(0, 7))
        rank = draw.choice(sorted(ranks))
        os.kill(ranks[rank], signal.SIGKILL)
        _, text = process.communicate(timeout=30)
        line = f"process {rank} (pid {ranks[rank]}) was ended by SIGKILL"
        told.append((process.returncode, text.count(line), text.count("error: ")))
    assert [(1, 1, 1)] * 5 == told
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    assert rows(unkilled) == rows(folder / f"killed-{part}")
    assert digest(unkilled) == digest(folder / f"killed-{part}")


def _ranks(process: subprocess.Popen[str]) -> dict[str, int]:
    """Return the processes of a run with `--nproc 2` as soon as both are there."""
    found: dict[str, int] = {}
    while len(found) < 2 and process.poll() is None:
        time.sleep(0.02)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                if "neaptide" in child.cmdline() and "RANK" in child.environ():
                    found[child.environ()["RANK"]] = child.pid
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whom", ["run", "1"])
def test_a_signal_saves_the_run(folder: Path, number: signal.Signals, whom: str) -> None:
    name = f"{number.name}-{whom}"
    process, ranks = begun(folder, name)
    os.kill(ranks.get(whom, process.pid), number)
    _, told = process.communicate(timeout=60)
    assert 128 + number == process.returncode
    assert f"stopped by signal {number:d} after update" in told
    trained(folder, 2, name, "--resume=auto", "--allow-changes", "--set=train.steps=1")
