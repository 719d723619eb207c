"""Runs of several processes: as exact as one, and told by one process when they fail."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from several_runs import (
    RUN,
    begun,
    digest,
    failed,
    require_close,
    rows,
    stopped_at_16,
    trained,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")


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
