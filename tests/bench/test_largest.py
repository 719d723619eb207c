"""The bench of the largest model finds a model that trains, and one block more that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_bench_finds_the_largest_model_of_a_way(tmp_path: Path) -> None:
    small = ("--gib", "0.5", "--width", "512", "--ways", "adafactor, bfloat16")
    written, table, _ = measured("largest.py", tmp_path, *small)
    (row,) = written["rows"]
    assert 0 == row["parameters"] % (8 * 512**2)
    limit = 2**29
    assert row["of_the_limit"] == pytest.approx(limit / row["parameters"])
    assert row["bytes"] == pytest.approx((limit - written["bare"]) / row["parameters"])
    # Less than what weights and state take, no model could train in.
    assert row["stated"] < row["bytes"]
    assert "| adafactor, bfloat16 |" in table
