"""The bench of reliability counts flips of a checkpoint, and shows how a run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_flips_are_counted_and_ends_are_shown(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-W", "ignore", str(ROOT / "bench" / "reliability.py")]
    command += ["--flips", "3", "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Neaptide | 3 | 0 | 0" in done.stdout
    assert json.loads(found.read_text("utf-8"))
