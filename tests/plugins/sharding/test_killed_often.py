"""A process that is killed at any moment is told, and the run that is resumed has the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from several_runs import RUN, digest, trained

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")
SEED, SIZE = 27, 2
LONG = ("--set=train.steps=1200", "--set=run.checkpoint_every=20", "--set=eval.every=0")
STAGE = "--set=plugins.sharding.stage=3"
STARTED = 5.0
"""Seconds within which processes have imported torch and train."""


def ranks_of(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """Return the processes of a run by their number, as soon as all of them are there."""
    found: dict[int, psutil.Process] = {}
    while len(found) < SIZE and process.poll() is None:
        time.sleep(0.02)
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if "neaptide" in child.cmdline():
                    found[int(child.environ()["RANK"])] = child
            except (psutil.Error, KeyError):  # it has not started its program, or has ended
                continue
    return found


def killed(folder: Path, name: str, rank: int, after: float) -> str:
    """Run until the end, or kill a process after so many seconds; return what the run told."""
    command = [sys.executable, *RUN, f"--nproc={SIZE}", "--resume=auto", f"--set=run.dir={name}"]
    process = subprocess.Popen(
        [*command, STAGE, *LONG], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    ranks = ranks_of(process)
    time.sleep(after)
    pid = ranks[rank].pid
    if process.poll() is None:
        ranks[rank].send_signal(signal.SIGKILL)
    _, told = process.communicate(timeout=30)
    if process.returncode:
        line = f"error: process {rank} (pid {pid}) was ended by SIGKILL, so the others were stopped"
        assert told.startswith(line), told
        assert not any(one.is_running() for one in ranks.values())
        return told
    return ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_process_killed_at_30_moments_is_told_and_the_run_ends_with_the_same_bits(
    folder: Path,
) -> None:
    wanted = digest(trained(folder, SIZE, "not-killed", STAGE, *LONG))
    moments = random.Random(SEED)
    kills = number = 0
    while kills < 30:
        name = f"killed-{number}"
        if killed(folder, name, moments.randrange(SIZE), moments.uniform(0, STARTED)):
            kills += 1
        else:
            assert wanted == digest(folder / name)
            number += 1
    assert wanted == digest(trained(folder, SIZE, name, STAGE, *LONG, "--resume=auto"))
