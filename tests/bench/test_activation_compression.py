"""The bench of activation-compression: every precision with each group, beside none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_bytes_errors_and_times_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    script = str(BENCH / "plugins" / "activation_compression.py")
    options = ["--rounds", "2", "--width", "32", "--layers", "1", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert 6 * 4 == len(rows)
    for row in rows:
        assert row["task"] in done.stdout
        assert row["time_ratio"] > 0
        off = row["group"] is None
        assert off == (row["gradient_error"] == 0)
        assert off or 0.2 < row["saved_share"] < 0.9
        assert row["gradient_error"] < 0.05
