"""The bench of activation-compression: every precision with each group, beside none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_errors_and_times_are_measured(tmp_path: Path) -> None:
    small = ("--rounds", "2", "--width", "32", "--layers", "1")
    report, out, _ = measured("plugins/activation_compression.py", tmp_path, *small)
    rows = report["rows"]
    assert 6 * 4 == len(rows)
    for row in rows:
        assert row["task"] in out
        assert row["time_ratio"] > 0
        off = row["group"] is None
        assert off == (row["gradient_error"] == 0)
        assert off or 0.2 < row["saved_share"] < 0.9
        assert row["gradient_error"] < 0.05
