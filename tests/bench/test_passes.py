"""The bench of passes times optimizers beside AdamW on a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_the_bench_times_passes_beside_adamw(tmp_path: Path) -> None:
    quick = ("--tasks", "photo", "--rounds", "2", "--passes", "2")
    setting = "optimizer.options.ns_steps=2"
    written, table, _ = measured("plugins/passes.py", tmp_path, *quick, "--set", setting)
    assert [setting] == written["set"]
    base, muon = written["rows"]
    assert ["adamw", "muon"] == [base["optimizer"], muon["optimizer"]]
    assert [1.0, 1.0] == base["x"]
    assert all(time > 0 for time in muon["ms"])
    assert "| photo | muon |" in table
