"""SIGINT and SIGTERM at any line of a run, once and twice: saved or left at once, never spoilt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import environment

HERE = Path(__file__).parent


def sweep(root: Path, name: str, times: int, stride: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the digest of the undisturbed run, and the runs that the signal reached."""
    arguments = [root, name, times, 1, stride]
    done = subprocess.run(
        [sys.executable, HERE / "signalled.py", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole, *runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(runs) > 10
    assert whole == runs.pop()["ended"]  # which it reached no more
    return whole, runs


def check_once(root: Path, name: str, stride: int) -> None:
    whole, runs = sweep(root, name, 1, stride)
    for run in runs:
        code = 128 + getattr(signal, name)
        assert run["ended"].startswith(f"{code} stopped by signal {code - 128} after update "), run
        assert f"saved {root / 'run' / 'checkpoints' / run['newest']}; go on" in run["ended"], run
        assert run["handlers"], run
        assert ([], []) == (run["skipped"], run["strays"]), run
        assert whole == run["resumed"], run


def check_twice(root: Path, name: str, stride: int) -> None:
    whole, runs = sweep(root, name, 2, stride)
    for run in runs:
        # It left at that line: nothing was said any more, and what was whole before still is.
        assert ("", 128 + getattr(signal, name)) == (run["ended"], run["status"]), run
        assert [] == run["skipped"], run
        assert whole == run["resumed"], run


def test_one_signal_anywhere(tmp_path: Path) -> None:
    check_once(tmp_path, "SIGTERM", 5801)


def test_two_signals_anywhere(tmp_path: Path) -> None:
    check_twice(tmp_path, "SIGINT", 5903)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_at_many_more_lines(tmp_path: Path, name: str) -> None:
    check_once(tmp_path / "once", name, 97)
    check_twice(tmp_path / "twice", name, 211)
