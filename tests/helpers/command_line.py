"""The command line in this process and in processes of its own, in a directory with a tiny task."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import pytest
import warm

from neaptide.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = """
import time

import torch
from torch import nn
from torch.nn.functional import mse_loss


def model(width=8):
    print("the user's own words")
    module = nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    return module, lambda model, batch: mse_loss(model(batch), batch.sum(1, keepdim=True))


class Batches:
    def __init__(self, batches, seconds):
        self.batches, self.seconds = batches, seconds

    def __iter__(self):
        for batch in self.batches:
            time.sleep(self.seconds)
            yield batch


def data(seconds=0.0):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 8, generator=generator) for _ in range(10)]
    return Batches(batches, seconds), batches[:2]


def diverging():
    return model()[0], lambda model, batch: model(batch).mean() * float("nan")


def too_large():
    return torch.empty(1 << 60, dtype=torch.uint8)


def out_of_host_memory():
    raise MemoryError


def out_of_device_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def too_large_a_batch():
    return Batches(map(torch.empty, [1 << 60]), 0.0)


def leaving():
    raise SystemExit(7)


def leaving_in_forward(code=0):
    module, loss_fn = model()
    module.register_forward_hook(lambda *_: exit(code))
    return module, loss_fn


def leaving_data():
    batches = [torch.randn(16, 8)]
    return Batches(map(lambda _: raise_(SystemExit(0)), batches), 0.0)


def raise_(error):
    raise error


def broken():
    raise KeyError("a line\\nand another")


def slow():
    print("building", flush=True)
    time.sleep(60)
"""

CONFIG = """
[model]
name = "tiny_task:model"
[data]
name = "tiny_task:data"
[train]
steps = 24
device = "cpu"
[run]
log_every = 5
[eval]
every = 10
[phases]
warmup.steps = 3
full.steps = 5
predict = { max_horizon = 5, correction_interval = 1, rise = 10.0 }
correct.steps = 3
[plugins.predictor-drift]
min_window = 4
sample_every = 1
[plugins.profiler]
every = 5
"""


@attrs.frozen
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Command(Protocol):
    """Runs `neaptide` with the given arguments."""

    def __call__(self, *arguments: object) -> Done: ...


class Start(Protocol):
    """Starts `neaptide` in a process of its own; `env` adds to the environment."""

    def __call__(self, *arguments: object, **env: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory: it holds `tiny.toml` and the module it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny_task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.fixture
def neaptide(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Return the command line, called in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the environment of the tests without what changes how output looks."""
    loud = {"NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"}
    kept = {name: value for name, value in os.environ.items() if name not in loud}
    # A console script does not have the current directory on its path; safe path: nor has -m.
    return {**kept, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "TERM": "xterm"}


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Return the command line, started as the installed `neaptide` starts."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: object, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "neaptide", *map(str, arguments)],
            cwd=folder,
            env={**environment, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        with process:  # closes the pipes and waits
            pass


@pytest.fixture
def command(folder: Path, environment: dict[str, str]) -> Any:
    """Return the command line, run to its end in a process of its own that has torch already."""

    def run(*arguments: object, **env: str) -> Done:
        words = ["-m", "neaptide", *map(str, arguments)]
        done = warm.run(words, cwd=folder, env={**environment, **env})
        return Done(done.returncode, done.stdout, done.stderr)

    return run
