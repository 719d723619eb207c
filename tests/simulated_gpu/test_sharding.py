"""Several processes, each with a GPU of its own: as exact as one, and without a race."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from several_runs import (
    CONFIG,
    TASK,
    digest,
    failed,
    require_close,
    rows,
    stopped_at_16,
    trained,
)

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import runpy
import sys

import simulated_gpu

simulated_gpu.configure(devices=int(sys.argv[1]), capacity=1 << 30)
sys.argv = ["neaptide", "run", "several.toml", "--quiet", *sys.argv[2:]]
try:
    runpy.run_module("neaptide", run_name="__main__", alter_sys=True)
finally:
    if found := simulated_gpu.races():
        sys.exit("\\n".join(found))
"""
EMA = "--set=plugins.ema.enabled=true"


def on(devices: int) -> dict[str, Any]:
    """Return how a run is started on a machine with so many GPUs."""
    return {"run": ("on_gpus.py", str(devices))}


def stage_of(stage: str) -> list[str]:
    """Return the options of a stage; with `hybrid`, two processes have a copy."""
    pairs = ["--set=plugins.sharding.shard_size=2"] * (stage == "hybrid")
    return [EMA, f"--set=plugins.sharding.stage={stage}", *pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the task and its configuration."""
    made = tmp_path_factory.mktemp("several")
    (made / "several_task.py").write_text(TASK, encoding="utf-8")
    config = CONFIG.replace('device = "cpu"', 'device = "auto"')
    (made / "several.toml").write_text(config, encoding="utf-8")
    (made / "on_gpus.py").write_text(PROGRAM, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def one(folder: Path) -> Path:
    """Return the run of one process."""
    return trained(folder, 1, "one", EMA, **on(1))


@pytest.mark.parametrize(
    ("stage", "size"),
    [
        ("replicate", 2),
        pytest.param("1", 2, marks=pytest.mark.slow),
        ("3", 2),
        pytest.param("hybrid", 4, marks=pytest.mark.slow),
    ],
)
def test_processes_with_a_gpu_each_train_as_one(
    folder: Path, one: Path, stage: str, size: int
) -> None:
    found = trained(folder, size, f"stage-{stage}", *stage_of(stage), **on(size))
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in rows(found)}
    require_close(one, found)
    assert 'device = "auto"' in (found / "config.toml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["replicate", "1", "3"])
def test_what_is_saved_goes_on_to_the_bit_and_in_one_process(
    folder: Path, one: Path, stage: str
) -> None:
    options = stage_of(stage)
    first, second = (trained(folder, 2, f"{name}-{stage}", *options, **on(2)) for name in "ab")
    options += ["--resume=auto"]
    third = trained(folder, 2, stopped_at_16(first, f"c-{stage}"), *options, **on(2))
    assert rows(first) == rows(second) == rows(third)
    assert digest(first) == digest(second) == digest(third)
    require_close(one, trained(folder, 1, stopped_at_16(first, f"d-{stage}"), *options, **on(1)))


@pytest.mark.parametrize(
    ("size", "devices", "setting", "told"),
    [
        (2, 1, "", "processes 0 and 1 have the same CUDA device; start one process for each"),
        pytest.param(
            3,
            2,
            "",
            "this machine has 2 CUDA devices for 3 processes; start at most 2 on it",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            2,
            "--set=train.device=cuda:1",
            "each of several processes has a device of its own (got 'cuda:1'); set train.device",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processes_without_a_gpu_of_their_own_are_refused_in_one_line(
    folder: Path, size: int, devices: int, setting: str, told: str
) -> None:
    more = [setting] if setting else []
    done = failed(folder, size, "--set=run.dir=refused", *more, **on(devices))
    assert [2] * size == [each.returncode for each in done]
    (line,) = "".join(each.stderr for each in done).splitlines()
    assert told in line
    assert re.search(r'or set train\.device = "cpu" @ train\.device$', line)
