"""Runs whose weights and state are on a disk, killed at random moments, end with the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import disks
import killed_on_disk
import pytest
from support import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., tuple[int, float]]

SEED, ENDED = 24, "after its end"
IN_THE_BACKGROUND = ("--set", "plugins.background-save.buffer_gib=0.05")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Give a call that runs `neaptide` into a directory below `tmp_path`."""
    command = [sys.executable, killed_on_disk.__file__, str(tmp_path), disks.folder()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        into, out = server.stdin, server.stdout

        def ran(name: str, *more: str, kill_after: float | None = None) -> tuple[int, float]:
            where = f"plugins.layer-streaming.path={disks.folder()}"
            words = ["run", "on_disk.toml", "--set", where, "--set", f"run.dir={name}", *more]
            into.write(json.dumps([words, kill_after]) + "\n")
            into.flush()
            status, seconds = json.loads(out.readline())
            return status, seconds

        yield ran
        into.close()


def digest(directory: Path) -> str:
    found: str = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["digest"]
    return found


def moment(directory: Path) -> str:
    """Return when a run was killed, by what it left."""
    if [*directory.rglob(".tmp-*")]:
        return "during a save"
    steps = [*directory.rglob("step-*")]
    return "after a checkpoint" if steps else "before the first checkpoint"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill that cannot be caught")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kills", "more"),
    [
        (5, ()),
        pytest.param(100, (), marks=pytest.mark.slow),
        pytest.param(30, IN_THE_BACKGROUND, marks=pytest.mark.slow),
    ],
    ids=["5", "100", "30 in the background"],
)
def test_a_run_killed_at_random_ends_with_the_same_bits(
    kills: int, more: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    status, whole = run("whole", *more)
    assert status == 0, (tmp_path / "output.txt").read_text(encoding="utf-8")
    wanted = digest(tmp_path / "whole")
    moments = random.Random(SEED)
    found: Counter[str] = Counter()
    while found.total() - found[ENDED] < kills:
        number = found.total()
        after = moments.uniform(0, whole)
        told = f"kill {number} of seed {SEED}, after {after:.4f} s of {whole:.4f} s"
        directory = tmp_path / f"killed-{number}"
        status, _ = run(directory.name, *more, kill_after=after)
        if status == 0:  # this run was faster than the whole one
            found[ENDED] += 1
        else:
            assert status == -signal.SIGKILL, told
            found[moment(directory)] += 1
            told += f", {moment(directory)}"
        status, _ = run(directory.name, *more, "--resume", "auto")
        assert status == 0, f"{told}\n{(tmp_path / 'output.txt').read_text(encoding='utf-8')}"
        assert digest(directory) == wanted, told
        assert not [*directory.rglob(".tmp-*")], told
        shutil.rmtree(directory)
    sys.stdout.write(f"{kills} runs: {dict(found)}; a whole one took {whole:.2f} s\n")
    assert not [*Path(disks.folder()).glob(".neaptide-*")]
