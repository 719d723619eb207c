"""Runs of several processes: how they are started, what they log, and what a kill leaves."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from several import free_port
from several_runs import RUN, digest, rows, trained

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")


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
