"""Signals and a second process, seen from the command line: saved, told, and resumed to the bit."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

RUN = ("run", "tiny.toml", "--set", "run.progress=plain", "--set", "run.log_every=1")
PAUSES = ("--set", "data.options.seconds=0.3")


def wait_for(process: subprocess.Popen[str], start: str) -> None:
    """Read the output up to a line that begins with `start`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return
    pytest.fail(f"the run ended before {start!r}: {process.communicate()}")


def digest(folder: Path, run: str) -> str:
    """Return the digest a run ended with."""
    summary = json.loads((folder / run / "summary.json").read_text(encoding="utf-8"))
    found: str = summary["digest"]
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(
    start: Any, neaptide: Any, folder: Path, number: signal.Signals
) -> None:
    assert 0 == neaptide(*RUN, "--set", "run.dir=whole").code
    process = start(*RUN, *PAUSES)
    wait_for(process, "step  4/24")
    second = neaptide(*RUN)
    holder = f"error: another process (pid {process.pid}) trains in {folder}/runs/tiny"
    assert (2, f"{holder}; wait for it or set run.dir\n") == (second.code, second.err)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert 128 + number == process.returncode
    assert errors.startswith(f"stopped by signal {int(number)} after update ")
    assert errors.endswith("; go on with --resume auto\n")
    assert 1 == errors.count("\n")
    resumed = neaptide(*RUN, "--resume", "auto", "--allow-changes")
    assert 0 == resumed.code, resumed.err
    assert digest(folder, "whole") == digest(folder, "runs/tiny")


def test_ctrl_c_before_the_training_is_one_line(start: Any) -> None:
    process = start("run", "tiny.toml", "--set", "model.name=tiny_task:slow", "--json")
    for line in process.stderr:
        if line == "building\n":
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (130, "interrupted outside of an update\n") == (
        process.returncode,
        errors,
    )
    assert {"stopped": errors.strip(), "exit_code": 130} == json.loads(output)
