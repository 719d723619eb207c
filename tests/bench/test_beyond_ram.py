"""The bench beyond RAM trains the same bits from a disk, in a quarter of the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_model_of_four_times_the_memory_trains_to_the_bit(tmp_path: Path) -> None:
    small = ("--folder", str(tmp_path), "--blocks", "24", "--rounds", "1", "--steps", "4")
    found, out, _ = measured("runs/beyond_ram.py", tmp_path, *small)
    assert found["data"] <= found["limit"] == found["parameters"] * 12 // 4
    assert found["shares"]["alone"] > 0
    assert "share of what binds" in out
    assert ["measured.json"] == [path.name for path in tmp_path.iterdir()]
