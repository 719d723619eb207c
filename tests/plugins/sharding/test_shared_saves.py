"""Checkpoints that all processes write: those of one, whole or not there, without a peak."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from several import run_together
from several_runs import digest, failed, rows, trained

from neaptide.checkpoint import read_manifest, verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")

FAILING = """
import os
import resource
import runpy
import signal
import sys

from neaptide_plugins.sharding.saves import shared_saves

case, rank, *sys.argv[1:] = sys.argv[1:]
own = shared_saves.SharedSaves
write, agree, saves = own._write_rows, own._agree, []


def write_rows(self, directory, files):
    saves.append(directory)
    if len(saves) == 2 and case == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if len(saves) == 2 and case == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        write(self, directory, files)
    finally:
        if case == "full":
            limit = resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if len(saves) == 2 and case == "after":
        os.kill(os.getpid(), signal.SIGKILL)


if rank == os.environ["RANK"] and case == "stale":
    shared_saves._digests = lambda place, names: dict.fromkeys(names, "5" * 64)
elif rank == os.environ["RANK"]:
    own._write_rows = write_rows
    if case == "apart":
        shared_saves._inode = lambda directory: -1
sys.argv = ["neaptide", "run", "several.toml", "--quiet", *sys.argv[1:]]
runpy.run_module("neaptide", run_name="__main__", alter_sys=True)
"""
"""A run in which something happens to a process at the second save."""
MEMORY = """
import ctypes
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from neaptide import HybridTrainer

stage, saves = json.loads(sys.argv[1]), sys.argv[2]


def most(reset=False):
    if reset:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1600, 1600) for _ in range(3)])
optimizer = torch.optim.AdamW(model.parameters())
config = {"plugins": {"sharding": {"stage": stage, "saves": saves, "check_weights": False}}}
batch = torch.randn(4, 1600)
with HybridTrainer(
    model, optimizer, loss_fn=lambda net, batch: net(batch).square().mean(), config=config
) as trainer:
    trainer.step(batch)
    if dist.get_rank() == 0:
        before = most(reset=True)
        trainer.save(Path(f"saved-{stage}-{saves}"))
        print(most() - before)
    trainer.step(batch)
dist.destroy_process_group()
"""


def stage_of(stage: str, saves: str = "all") -> list[str]:
    return [f"--set=plugins.sharding.stage={stage}", f"--set=plugins.sharding.saves={saves}"]


def files_of(directory: Path) -> dict[str, str]:
    """Return the digests of the files of the newest checkpoint that do not tell of settings."""
    assert [] == verify(directory)
    found = read_manifest(directory).files
    return {name: one.sha256 for name, one in found.items() if not name.startswith("config")}


@pytest.mark.parametrize(
    ("stage", "size", "nodes"),
    [
        ("3", 2, 1),
        pytest.param("1", 2, 1, marks=pytest.mark.slow),
        pytest.param("hybrid", 4, 2, marks=pytest.mark.slow),
    ],
)
def test_all_write_the_bytes_that_the_first_writes(
    folder: Path, stage: str, size: int, nodes: int
) -> None:
    short = "--set=train.steps=12", "--set=plugins.ema.enabled=true"
    all_write, first_writes = (
        trained(
            folder, size, f"saves-{stage}-{saves}", *short, *stage_of(stage, saves), nodes=nodes
        )
        for saves in ("all", "first")
    )
    for step in ("step-00000008", "step-00000012"):
        both = [files_of(one / "checkpoints" / step) for one in (all_write, first_writes)]
        differing = {name for name in both[0] if both[0][name] != both[1][name]}
        assert differing <= {"training.json"}  # has seconds
        assert {"weights.safetensors", "optimizer.safetensors"} <= both[0].keys()
    assert digest(all_write) == digest(first_writes)


def failing(folder: Path, case: str, rank: int) -> tuple[str, ...]:
    """Return how a run is started in which something happens to a process."""
    (folder / "failing.py").write_text(FAILING, encoding="utf-8")
    return "-m", "failing", case, str(rank)


@pytest.mark.parametrize(
    ("case", "rank"),
    [
        ("before", 1),
        pytest.param("before", 0, marks=pytest.mark.slow),
        pytest.param("after", 1, marks=pytest.mark.slow),
        pytest.param("after", 0, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_killed_in_a_save_leaves_the_previous_checkpoint(
    folder: Path, case: str, rank: int
) -> None:
    name = f"killed-{case}-{rank}"
    run = failing(folder, case, rank)
    done = failed(folder, 2, f"--set=run.dir={name}", *stage_of("3"), run=run)
    assert -signal.SIGKILL == done[rank].returncode
    assert done[1 - rank].returncode
    checkpoints = folder / name / "checkpoints"
    assert ["step-00000008"] == [one.name for one in checkpoints.glob("step-*")]
    assert [] == verify(checkpoints / "step-00000008")
    again = trained(folder, 2, name, "--resume=auto", *stage_of("3"))
    assert "step-00000024" in {one.name for one in (again / "checkpoints").iterdir()}
    assert [] == [*(again / "checkpoints").glob(".*")]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_disk_that_is_full_fails_the_save_and_not_the_run(folder: Path, rank: int) -> None:
    name = f"full-{rank}"
    run = failing(folder, "full", rank)
    done = failed(folder, 2, f"--set=run.dir={name}", *stage_of("3"), run=run)
    assert [0, 0] == [one.returncode for one in done], done[0].stderr
    assert f"File too large, on process {rank}; free space" in done[0].stderr
    names = sorted(one.name for one in (folder / name / "checkpoints").iterdir())
    assert ["step-00000008", "step-00000024"] == names
    assert [] == verify(folder / name / "checkpoints" / "step-00000024")


def test_processes_that_do_not_find_the_directory_are_told_of_and_write_nothing(
    folder: Path,
) -> None:
    run = failing(folder, "apart", 1)
    done = failed(folder, 2, "--set=run.dir=apart", *stage_of("3"), run=run)
    assert [0, 0] == [one.returncode for one in done], done[0].stderr
    (line,) = (one for one in done[0].stderr.splitlines() if "sharding.saves_alone" in one)
    assert "process 1 does not find" in line
    newest = folder / "apart" / "checkpoints" / "step-00000024"
    assert [] == verify(newest)
    assert 24 == len([phase for phase, _ in rows(folder / "apart")]) - 2  # and two jumps


@pytest.mark.slow
def test_nodes_that_read_different_bytes_of_a_file_fail_the_save(folder: Path) -> None:
    run = failing(folder, "stale", 1)
    done = failed(folder, 2, "--set=run.dir=stale", *stage_of("3"), run=run, nodes=2)
    assert [1, 1] == [one.returncode for one in done]  # the last save was to be the result
    assert "read different bytes of one file" in done[0].stderr
    assert [] == [*(folder / "stale" / "checkpoints").iterdir()]


@pytest.mark.parametrize("stage", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_the_first_process_holds_no_state_of_others(tmp_path: Path, stage: int) -> None:
    (tmp_path / "memory.py").write_text(MEMORY, encoding="utf-8")
    state = 2 * 4 * 3 * 1600 * 1601
    more = {}
    for saves in ("all", "first"):
        done = run_together(2, ["-m", "memory", json.dumps(stage), saves], cwd=tmp_path)
        assert [0, 0] == [one.returncode for one in done], done[0].stderr
        more[saves] = int(done[0].stdout)
        assert [] == verify(tmp_path / f"saved-{stage}-{saves}")
    assert more["first"] >= 0.9 * state
    assert more["all"] <= more["first"] - 0.4 * state
    both = [files_of(tmp_path / f"saved-{stage}-{saves}") for saves in more]
    for name in ("weights.safetensors", "optimizer.safetensors"):
        assert both[0][name] == both[1][name]
