"""The bench of the gradient norm compares updates in pairs and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_the_bench_writes_what_a_norm_adds(tmp_path: Path) -> None:
    path = tmp_path / "norm.json"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", str(BENCH / "gradient_norm.py")),
            *("--pairs", "3", "--models", "2", "--jump", "100000", "--json", str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    written = json.loads(path.read_text(encoding="utf-8"))
    rows = written["rows"]
    assert ["three layers", "GPT, batch 4 x 32"] == [row["model"] for row in rows]
    for row in rows:
        assert row["ms_an_update"] > 0
        assert row["default"] == row["every"] / 10
    assert ["the guard's", "one float64 sum", "one float32 sum"] == [
        row["way"] for row in written["jump"]
    ]
    assert all(row["ms"] > 0 and row["relative_error"] < 1e-4 for row in written["jump"])
