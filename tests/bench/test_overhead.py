"""The overhead bench: every subject that can be measured here is, and what is missing is named."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
OURS = {
    "bare loop",
    "Neaptide, no plugins",
    "Neaptide, no plugins, check_finite off",
    "Neaptide, 8 idle plugins",
    "Neaptide, 6 shipped plugins",
    "Neaptide, no plugins, run directory",
}


def test_all_that_is_there_is_measured_and_the_rest_named(tmp_path: Path) -> None:
    path = tmp_path / "overhead.json"
    command = [sys.executable, "-W", "ignore", str(BENCH / "overhead.py")]
    done = subprocess.run(
        [*command, "--rounds", "2", "--steps", "3", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    report = json.loads(path.read_text())
    rows = {row["subject"]: row for row in report["rows"]}
    assert OURS <= rows.keys()
    for row in rows.values():
        assert row["subject"] in done.stdout
        assert row["us_a_step"] > 0.0
    assert 0.0 == rows["bare loop"]["over_bare_us"]
    assert ("Accelerate" in rows) == (find_spec("accelerate") is not None)
    assert ("Accelerate is left out" in done.stderr) == (find_spec("accelerate") is None)


def test_the_default_optimizer_is_measured_beside_the_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "optimizers.json"
    command = [sys.executable, "-W", "ignore", str(BENCH / "overhead.py"), "--optimizers"]
    done = subprocess.run(
        [*command, "--rounds", "2", "--steps", "1", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    rows = {row["subject"]: row for row in json.loads(path.read_text())["rows"]}
    nets = ("7k net", "10.7M MLP", "4.9M GPT")
    assert [f"{net}, {form}" for net in nets for form in ("fused = false", "default")] == [*rows]
    assert {0.0} == {rows[f"{net}, fused = false"]["over_bare_us"] for net in nets}
