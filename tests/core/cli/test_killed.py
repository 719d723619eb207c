"""A process that is killed, seen from the command line: nothing lost but the last updates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

RUN = ("run", "tiny.toml", "--set", "run.progress=plain", "--set", "run.log_every=1")
SAVING = ("--set", "run.checkpoint_every=2")
PAUSES = ("--set", "data.options.seconds=0.05")


def read_until(process: subprocess.Popen[str], start: str) -> None:
    """Read the output up to a line that begins with `start`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return
    pytest.fail(f"the run ended before {start!r}: {process.communicate()}")


def summary_of(folder: Path, run: str) -> Any:
    return json.loads((folder / run / "summary.json").read_text(encoding="utf-8"))


def test_a_killed_run_goes_on_from_its_newest_checkpoint(
    start: Any, neaptide: Any, folder: Path
) -> None:
    assert 0 == neaptide(*RUN, *SAVING, "--set", "run.dir=whole").code
    process = start(*RUN, *SAVING, *PAUSES)
    read_until(process, "step  5/24")
    process.kill()
    assert -9 == process.wait(timeout=60)
    header, *rows = (folder / "runs/tiny/steps.csv").read_text(encoding="utf-8").splitlines()
    updates = [row.split(",")[0] for row in rows if ",true," not in row]
    assert ["1", "2", "3", "4"] == updates[:4]  # the one shown last is recorded during the next
    assert {header.count(",")} == {row.count(",") for row in rows}
    refused = neaptide(*RUN, *SAVING)
    assert 2 == refused.code
    assert "holds checkpoints of an earlier run" in refused.err
    resumed = neaptide(*RUN, *SAVING, "--resume", "auto", "--allow-changes")
    assert 0 == resumed.code, resumed.err
    assert "step  1/24" not in resumed.out
    whole, stopped = summary_of(folder, "whole"), summary_of(folder, "runs/tiny")
    assert whole["digest"] == stopped["digest"]
    assert 24 == stopped["steps"]
    assert 0 == neaptide("ckpt", "verify", "runs/tiny").code


def test_a_learning_rate_that_explodes_ends_in_diverged(neaptide: Any) -> None:
    sets = ("optimizer.name=sgd", "optimizer.lr=1e20", "train.max_skipped=3")
    done = neaptide(*RUN, *(word for setting in sets for word in ("--set", setting)))
    assert 5 == done.code
    (line,) = done.err.splitlines()
    assert line.startswith("error: 4 updates in a row had a non-finite loss or gradient (step ")
    assert "lower optimizer.lr" in line
