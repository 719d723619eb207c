"""The bench of the host's peak sets what a run takes beside what the plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_run_takes_about_what_the_plan_says(tmp_path: Path) -> None:
    small = ("--ways", "AdamW, float32", "--sizes", "512x8")
    found, table, _ = measured("runs/host_peak.py", tmp_path, *small)
    (row,) = found["rows"]
    state = 8 * 8 * 512**2 * 12
    assert row["planned"] > state
    assert row["taken"] > state
    assert row["taken"] / row["planned"] == pytest.approx(1, abs=0.15)
    assert "| AdamW, float32 | 512x8 |" in table
