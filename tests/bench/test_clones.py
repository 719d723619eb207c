"""The bench of cloned checkpoints saves in both ways in each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_both_ways_are_measured(tmp_path: Path) -> None:
    small = (str(tmp_path), "--rounds", "2", "--width", "256", "--blocks", "3")
    report, out, _ = measured("runs/clones.py", tmp_path, *small)
    assert ["cloned", "written"] == [*report["rounds"]]
    for way, found in report["rounds"].items():
        assert f"| {way} |" in out
        assert 2 == len(found)
        assert all(value > 0 for each in found for value in each.values())
    assert ["measured.json"] == [one.name for one in tmp_path.iterdir()], "the files are gone"
