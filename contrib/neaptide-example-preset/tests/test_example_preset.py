"""Tests of the preset: it is installed, listed and copied, and a run with it finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "smoke-cpu"


def neaptide(*arguments: object) -> str:
    """Run `neaptide` with these arguments. Return the printed text."""
    command = [sys.executable, "-m", "neaptide", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_it_is_listed_with_its_headline() -> None:
    listed = {
        row["name"]: row["summary"] for row in json.loads(neaptide("presets", "list", "--json"))
    }
    assert listed[NAME].startswith("The shortest run through all four phases")


def test_a_copy_of_it_is_a_configuration(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    neaptide("presets", "copy", NAME, copy)
    assert json.loads(neaptide("config", "check", copy, "--json"))["ok"]


def test_it_runs_through_all_four_phases(tmp_path: Path) -> None:
    neaptide("run", "--preset", NAME, "--quiet", "--set", f"run.dir={tmp_path}")
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert 24 == summary["steps"]
    events = (tmp_path / "events.jsonl").read_text(encoding="utf-8")
    assert "jump." in events
