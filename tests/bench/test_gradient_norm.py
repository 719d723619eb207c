"""The bench of the gradient norm compares updates in pairs and writes its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_the_bench_writes_what_a_norm_adds(tmp_path: Path) -> None:
    small = ("--pairs", "3", "--models", "2", "--jump", "100000")
    written, _, _ = measured("runs/gradient_norm.py", tmp_path, *small)
    rows = written["rows"]
    assert ["three layers", "GPT, batch 4 x 32"] == [row["model"] for row in rows]
    for row in rows:
        assert row["ms_an_update"] > 0
        assert row["default"] == row["every"] / 10
    assert ["the guard's", "one float64 sum", "one float32 sum"] == [
        row["way"] for row in written["jump"]
    ]
    assert all(row["ms"] > 0 and row["relative_error"] < 1e-4 for row in written["jump"])
