"""Copies of a divided model, one on each node: as exact as one process, saved as by one."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from several_runs import begun, digest, failed, require_close, rows, stopped_at_16, trained

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")

HYBRID = "--set=plugins.sharding.stage=hybrid"
PAIRS = "--set=plugins.sharding.shard_size=2"


@pytest.fixture(scope="session")
def hybrid(folder: Path) -> Path:
    """Return the run of four processes on two nodes, of which each has the model."""
    return trained(folder, 4, "hybrid", HYBRID, nodes=2)


def test_two_by_two_processes_train_as_one(one: Path, hybrid: Path) -> None:
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in rows(hybrid)}
    require_close(one, hybrid)


@pytest.mark.slow
def test_pairs_on_one_node_have_the_bits_of_two_nodes(folder: Path, hybrid: Path) -> None:
    again = trained(folder, 4, "pairs", HYBRID, PAIRS)
    resumed = trained(
        folder, 4, stopped_at_16(hybrid, "hybrid-16"), HYBRID, "--resume=auto", nodes=2
    )
    assert rows(hybrid) == rows(again) == rows(resumed)
    assert digest(hybrid) == digest(again) == digest(resumed)


@pytest.mark.slow
def test_on_one_node_it_has_the_bits_of_stage_3(folder: Path) -> None:
    both = (trained(folder, 2, f"node-{one}", f"{HYBRID[:-6]}{one}") for one in ("hybrid", "3"))
    assert 1 == len({digest(directory) for directory in both})


@pytest.mark.slow
def test_six_processes_have_three_copies_or_two(folder: Path, one: Path) -> None:
    for nodes in (3, 2):
        require_close(one, trained(folder, 6, f"six-{nodes}", HYBRID, nodes=nodes))


@pytest.mark.slow
def test_what_is_saved_goes_from_2_by_2_to_2_to_1_to_4(folder: Path, one: Path) -> None:
    steps = 0
    for size, nodes in ((4, 2), (2, 1), (1, 1), (4, 1)):
        steps += 6
        more = ["--resume=auto", "--allow-changes"] if steps > 6 else []
        trained(
            folder, size, "pairs-chain", f"--set=train.steps={steps}", HYBRID, *more, nodes=nodes
        )
    found = rows(folder / "pairs-chain")
    assert [loss for _, loss in rows(one)] == pytest.approx([loss for _, loss in found], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["1", "2"])
def test_a_killed_process_ends_all_copies(folder: Path, rank: str) -> None:
    process, ranks = begun(folder, f"killed-pairs-{rank}", HYBRID, PAIRS, size=4)
    os.kill(ranks[rank], signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    assert 1 == process.returncode
    assert (
        f"error: process {rank} (pid {ranks[rank]}) was ended by SIGKILL" in told.splitlines()[-1]
    )
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_signal_to_another_copy_saves_what_all_have(folder: Path) -> None:
    process, ranks = begun(folder, "stopped-pairs", HYBRID, PAIRS, size=4)
    os.kill(ranks["3"], signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert 128 + signal.SIGTERM == process.returncode
    assert "stopped by signal 15 after update" in told
    again = ("--resume=auto", "--allow-changes", "--set=train.steps=1")
    trained(folder, 1, "stopped-pairs", *again, HYBRID, PAIRS)


@pytest.mark.slow
def test_data_that_fail_in_another_copy_end_the_run_in_one_message(folder: Path) -> None:
    done = failed(
        folder, 4, "--set=data.options.failing=r3", "--set=run.dir=failing-pairs", HYBRID, nodes=2
    )
    assert [1, 1, 1, 1] == [one.returncode for one in done]
    (told,) = (one.stderr for one in done if one.stderr)
    assert told.startswith("error: the training data raised OSError: the disk is gone")


@pytest.mark.parametrize(
    ("size", "nodes", "setting", "told"),
    [
        (2, 2, "", "with one process on each node, stage = hybrid divides nothing; set stage = 3"),
        pytest.param(
            3,
            1,
            PAIRS,
            "3 processes cannot be divided into groups of 2, of which each has the model; set one "
            "of [3] @ plugins.sharding.shard_size = 2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processes_that_cannot_be_divided_are_refused_in_one_line(
    folder: Path, size: int, nodes: int, setting: str, told: str
) -> None:
    more = [HYBRID, *([setting] if setting else []), "--set=run.dir=refused"]
    done = failed(folder, size, *more, nodes=nodes)
    assert [2] * size == [one.returncode for one in done]
    (line,) = "".join(one.stderr for one in done).splitlines()
    assert told in line
