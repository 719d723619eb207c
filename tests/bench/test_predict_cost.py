"""The bench of what predicting costs: every subject is trained, and told beside the plain run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "predict_cost.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(BENCH), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_subject_is_set_beside_the_plain_run(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    done = run("--updates", "4", "--block", "2", "--json", str(path))
    assert 0 == done.returncode, done.stderr
    report = json.loads(path.read_text())
    assert 4 == report["updates"]
    plain, *others = report["rows"]
    assert (0.0, [0.0, 0.0]) == (plain["added_percent"], plain["interval_percent"])
    assert 8 == len(others)
    for row in report["rows"]:
        assert f"| {row['subject']} |" in done.stdout
        low, high = row["interval_percent"]
        assert low <= high


def test_the_small_task_has_fewer_parameters(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    done = run("--small", "--updates", "4", "--block", "2", "--json", str(path))
    assert 0 == done.returncode, done.stderr
    assert 86_400 == json.loads(path.read_text())["parameters"]


def test_one_block_has_no_interval() -> None:
    done = run("--updates", "3", "--block", "2")
    assert 2 == done.returncode
    assert "--updates must be at least twice --block (got 3)" in done.stderr
