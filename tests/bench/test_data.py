"""The bench of data measures tokenizing, batches and training, and their ratios."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_each_rate_and_ratio_is_measured_in_each_round(tmp_path: Path) -> None:
    script, path = ROOT / "bench" / "models" / "data.py", tmp_path / "data.json"
    small = ["--rounds", "2", "--seconds", "0.1", "--documents", "60", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(script), *small], capture_output=True, text=True, check=True
    )
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found.pop("cores") >= 1
    assert all(len(values) == 2 and min(values) > 0.0 for values in found.values())
    assert all(f"| {name}" in done.stdout for name in found)
