"""The bench of optimizer-offload: every strategy has its row, and frees what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_every_strategy_is_measured(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--width", "256")
    report, out, _ = measured("plugins/optimizer_offload.py", tmp_path, *small)
    rows = {row["strategy"]: row for row in report["rows"]}
    assert {"none", "cpu", "pinned", "compress", "drop"} == rows.keys()
    freed = {name: 1 - row["bytes_in_predict"] / row["bytes_at_rest"] for name, row in rows.items()}
    assert 0.0 == freed["none"]
    assert all(0.6 <= freed[name] <= 0.7 for name in ("cpu", "pinned", "drop"))
    assert 0.4 <= freed["compress"] <= 0.5
    for name in rows:
        assert f"| {name} |" in out
