"""Clocks that go backwards, read-only places, two processes in one place, and forks."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import environment, tiny_trainer
from torch.utils.data import DataLoader, Dataset

from neaptide import RunDirectoryError
from neaptide.api.rng import seed_all
from neaptide.checkpoint import verify

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
    import os, sys, threading, time
    import torch
    torch.set_num_threads(1)
    from pathlib import Path
    from support import tiny_trainer
    from neaptide import NeaptideError
    from neaptide.api.rng import seed_all
    seed_all(0)
    def train(directory, **train):
        config = {
            "run": {"dir": directory, "checkpoint_every": 2, "log_every": 1},
            "train": {"steps": 6, **train},
            "plugins": {"profiler": {}, "ema": {}, "divergence-monitor": {}},
        }
        trainer, batches = tiny_trainer(config)
        with trainer:
            return trainer.fit(batches)["digest"]
"""


def script(body: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", dedent(RUN) + dedent(body), *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BACKWARDS = """
    now = {name: getattr(time, name)() for name in ("time", "monotonic", "perf_counter")}
    def backwards(name):
        def clock():
            now[name] -= 3600.0
            return now[name]
        return clock
    print(train(sys.argv[1] + "/forwards"))
    for name in now:
        setattr(time, name, backwards(name))
    time.time_ns = lambda: int(time.time() * 1e9)
    time.perf_counter_ns = lambda: int(time.perf_counter() * 1e9)
    time.monotonic_ns = lambda: int(time.monotonic() * 1e9)
    seed_all(0)
    print(train(sys.argv[1] + "/backwards"))
"""


def test_a_clock_that_goes_backwards_changes_times_alone(tmp_path: Path) -> None:
    one, other = script(BACKWARDS, tmp_path).splitlines()
    assert one == other
    rows = []
    for way in ("forwards", "backwards"):
        with (tmp_path / way / "steps.csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        rows.append([(row["step"], row["phase"], row["loss"]) for row in table])
        assert [] == verify(tmp_path / way / "checkpoints" / "step-00000006")
    assert rows[0] == rows[1]
    assert 6 == len(rows[0])


READ_ONLY = """
    import subprocess
    root = sys.argv[1]
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", root]
    subprocess.run(mount, check=True)
    if sys.argv[2] == "start":
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        try:
            train(root + "/run")
        except NeaptideError as error:
            print(type(error).__name__, error)
    else:
        # Half way, as a disk does after an error: open files do not allow it, so they are closed.
        seed_all(0)
        config = {"run": {"dir": root + "/run", "checkpoint_every": 2}, "train": {"steps": 6}}
        trainer, batches = tiny_trainer(config)
        def observe(result, state):
            if state.step == 3:
                subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", root], check=True)
        try:
            with trainer:
                trainer.fit(batches, observe=observe)
        except NeaptideError as error:
            print(type(error).__name__, error)
        print(trainer.state.step)
"""


@pytest.mark.parametrize("when", ["start", "later"])
def test_a_read_only_directory_is_one_line(tmp_path: Path, when: str) -> None:
    prefix = ("unshare", "--user", "--map-root-user", "--mount")
    probe = subprocess.run(
        [*prefix, "mount", "-t", "tmpfs", "none", tmp_path], check=False, capture_output=True
    )
    if probe.returncode:
        pytest.skip(f"nothing can be mounted here: {probe.stderr.decode().strip()}")
    line, *rest = script(READ_ONLY, tmp_path, when, prefix=prefix).splitlines()
    assert "Read-only file system" in line
    assert "set run.dir elsewhere" in line
    if when == "start":
        assert line.startswith("RunDirectoryError cannot write in the run directory ")
        assert [] == rest
    else:  # the updates are made all the same; it is the end that cannot be saved
        assert line.startswith("CheckpointError cannot write checkpoint ")
        assert ["6"] == rest


def test_two_trainers_do_not_share_a_directory(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.step(batches[0])
        before = (tmp_path / "run" / "config.toml").read_bytes()
        with pytest.raises(RunDirectoryError, match=rf"another process \(pid {os.getpid()}\)"):
            tiny_trainer(config)
        found = script(
            """
            try:
                train(sys.argv[1])
            except NeaptideError as error:
                print(type(error).__name__, error)
            """,
            tmp_path / "run",
        )
        assert f"RunDirectoryError another process (pid {os.getpid()}) trains in" in found
        assert before == (tmp_path / "run" / "config.toml").read_bytes()
        assert 2 == trainer.step(batches[1]).step


FORKED = """
    print(train(sys.argv[1] + "/alone"), flush=True)  # or the child would print it, too
    seed_all(0)
    config = {
        "run": {"dir": sys.argv[1] + "/fork", "checkpoint_every": 2, "log_every": 1},
        "train": {"steps": 6},
        "plugins": {"profiler": {}, "ema": {}, "divergence-monitor": {}},
    }
    trainer, batches = tiny_trainer(config)
    def observe(result, state):
        if state.step == 3:
            child = os.fork()
            if child == 0:
                sys.exit(0)  # leaves through `with trainer`, too
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            found = os.fork()
            if found == 0:
                try:
                    tiny_trainer(config)
                except NeaptideError as error:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(found, 0)[1]) == 7  # the lock still holds
    with trainer:
        print(trainer.fit(batches, observe=observe)["digest"])
"""


def test_a_forked_child_that_ends_takes_nothing_with_it(tmp_path: Path) -> None:
    one, other = script(FORKED, tmp_path).splitlines()
    assert one == other
    lines = [(tmp_path / way / "steps.csv").read_text().splitlines() for way in ("alone", "fork")]
    assert [7, 7] == [len(one) for one in lines]
    for way in ("alone", "fork"):
        assert [] == verify(tmp_path / way / "checkpoints" / "step-00000006")


class Samples(Dataset[dict[str, torch.Tensor]]):
    """What workers load, in processes forked from the one that trains."""

    def __init__(self, batches: list[Any]) -> None:
        self.x = torch.cat([batch["x"] for batch in batches])
        self.y = torch.cat([batch["y"] for batch in batches])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


def test_workers_of_a_loader_disturb_nothing(tmp_path: Path) -> None:
    digests = []
    for workers in (0, 2):
        seed_all(0)
        config = {
            "run": {"dir": str(tmp_path / f"{workers}"), "checkpoint_every": 2},
            "train": {"steps": 6},
        }
        trainer, batches = tiny_trainer(config)
        loader = DataLoader(
            Samples(batches[:4]),
            batch_size=12,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        with trainer:
            trainer.fit(loader)
            digests.append(trainer.model.state_dict())
        assert [] == verify(tmp_path / f"{workers}" / "checkpoints" / "step-00000006")
        assert 7 == len((tmp_path / f"{workers}" / "steps.csv").read_text().splitlines())
    assert all(torch.equal(digests[0][name], digests[1][name]) for name in digests[0])
