"""Runs that divide the state or the model: as exact as one process, saved and resumed as one."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from several import run_together
from several_runs import begun, digest, failed, require_close, rows, stopped_at_16, trained

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")


ENDING = """
import atexit, runpy, sys
from pathlib import Path
names = lambda: [one.read_text().strip() for one in Path("/proc/self/task").glob("*/comm")]
atexit.register(lambda: print([one for one in names() if one.startswith(("gloo", "pt_"))]))
name, stage = sys.argv[1:]
options = [f"--set=run.dir={name}", f"--set=plugins.sharding.stage={stage}", "--set=train.steps=4"]
sys.argv = ["neaptide", "run", "several.toml", "--quiet", *options]
runpy.run_module("neaptide", run_name="__main__", alter_sys=True)
"""
"""Prints the names of those threads of torch that run when Python ends."""


def stage_of(stage: int) -> str:
    return f"--set=plugins.sharding.stage={stage}"


@pytest.fixture(scope="session")
def divided(folder: Path) -> Path:
    """Return the run of two processes that have shards of the model."""
    return trained(folder, 2, "stage-3", stage_of(3))


def test_two_processes_with_shards_train_as_one(one: Path, divided: Path) -> None:
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in rows(divided)}
    require_close(one, divided)


def test_what_two_with_shards_have_saved_one_goes_on_with(
    folder: Path, one: Path, divided: Path
) -> None:
    require_close(
        one, trained(folder, 1, stopped_at_16(divided, "alone"), "--resume=auto", stage_of(3))
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("stage", [1, 2])
def test_each_stage_trains_as_one(folder: Path, one: Path, stage: int, size: int) -> None:
    require_close(one, trained(folder, size, f"s{stage}-{size}", stage_of(stage)))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_a_repeat_has_the_same_bits(folder: Path, one: Path, stage: int) -> None:
    option = stage_of(stage)
    first, second = (trained(folder, 4, f"s{stage}{name}", option) for name in "ab")
    third = trained(folder, 4, stopped_at_16(first, f"s{stage}c"), option, "--resume=auto")
    assert rows(first) == rows(second) == rows(third)
    assert digest(first) == digest(second) == digest(third)
    require_close(one, first)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "nodes"), [("1", 1), ("3", 1), ("hybrid", 2)])
def test_no_thread_of_the_group_runs_when_python_ends(folder: Path, stage: str, nodes: int) -> None:
    """It could still hear another process leave while the interpreter is torn down."""
    command = ["-c", ENDING, f"threads-{stage}", stage]
    done = run_together(2 * nodes, command, cwd=folder, nodes=nodes)
    assert {0} == {one.returncode for one in done}, done[0].stderr
    assert {"[]"} == {one.stdout.splitlines()[-1] for one in done}


@pytest.mark.slow
def test_stage_2_has_the_bits_of_stage_3(folder: Path, divided: Path) -> None:
    assert digest(divided) == digest(trained(folder, 2, "stage-2", stage_of(2)))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(3, 3, 3, 3), (1, 1, 1, 1), (3, 1, 3, 2)])
def test_what_is_saved_goes_from_4_to_2_to_1_to_3(
    folder: Path, one: Path, stages: tuple[int, ...]
) -> None:
    name, steps = f"chain-{''.join(map(str, stages))}", 0
    for size, stage in zip((4, 2, 1, 3), stages, strict=True):
        steps += 6
        more = ["--resume=auto", "--allow-changes"] if steps > 6 else []
        trained(folder, size, name, f"--set=train.steps={steps}", stage_of(stage), *more)
    found = rows(folder / name)
    assert [loss for _, loss in rows(one)] == pytest.approx([loss for _, loss in found], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_a_signal_saves_what_all_processes_have(folder: Path, stage: int) -> None:
    name = f"stopped-{stage}"
    process, ranks = begun(folder, name, stage_of(stage))
    os.kill(ranks["1"], signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert 128 + signal.SIGTERM == process.returncode
    assert "stopped by signal 15 after update" in told
    again = ("--resume=auto", "--allow-changes", "--set=train.steps=1")
    trained(folder, 1, name, *again, stage_of(stage))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["r1", "r0r1"])
def test_data_that_fail_end_the_run_in_one_message(folder: Path, ranks: str) -> None:
    name = f"failing-{ranks}"
    done = failed(
        folder, 2, f"--set=data.options.failing={ranks}", f"--set=run.dir={name}", stage_of(3)
    )
    assert [1, 1] == [one.returncode for one in done]
    told = [one.stderr for one in done if one.stderr]
    assert 1 == len(told)
    assert told[0].startswith("error: the training data raised OSError: the disk is gone")
    if ranks == "r0r1":  # all have it, so the first has saved what all have
        assert "go on with --resume auto" in told[0]
        shutil.rmtree(folder / name)


@pytest.mark.slow
def test_a_killed_process_ends_the_run(folder: Path) -> None:
    process, ranks = begun(folder, "killed-3", stage_of(3))
    os.kill(ranks["1"], signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    assert 1 == process.returncode
    # Before it, torch may print what it lost in the middle of an exchange.
    (line,) = (each for each in told.splitlines() if each.startswith("error: "))
    assert line.startswith(f"error: process 1 (pid {ranks['1']}) was ended by SIGKILL")


@pytest.mark.slow
def test_an_optimizer_of_whole_weights_is_refused_in_one_line(folder: Path) -> None:
    done = failed(folder, 2, "--set=optimizer.name=adafactor", "--set=run.dir=refused", stage_of(3))
    assert [2, 2] == [one.returncode for one in done]
    (line,) = (each for each in done[0].stderr.splitlines() if each.startswith("error: "))
    assert "may update a weight as a whole" in line
    assert 'set stage = "replicate"' in line
