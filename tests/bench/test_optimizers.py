"""The bench of optimizers has the bytes of weights and state, and times beside torch's AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_the_bench_counts_bytes_and_compares_times(tmp_path: Path) -> None:
    small = ("--matrices", "2", "--side", "64", "--rounds", "2")
    written, _, _ = measured("plugins/optimizers.py", tmp_path, *small)
    assert 2 * 64 * 64 == written["parameters"]
    rows = {(row["optimizer"], row["dtype"]): row for row in written["rows"]}
    held = {key: row["weight_bytes"] + row["state_bytes"] for key, row in rows.items()}
    count = 4 / 64**2  # a step count of 4 bytes for each matrix
    assert held["AdamW of torch, fused", "float32"] == pytest.approx(12 + count)
    assert held["lion, rounding stochastic", "bfloat16"] == pytest.approx(4 + count)
    factors = 4 * 2 / 64  # a row and a column for each matrix, in float32
    assert held["adafactor, rounding nearest", "bfloat16"] == pytest.approx(2 + factors + count)
    moments = 4 * 2 / 4  # two of a quarter of a matrix, and a norm, in float32
    assert held["apollo", "float32"] == pytest.approx(4 + moments + 2 * count)
    assert held["apollo, mini", "float32"] == pytest.approx(4 + factors + 2 * count)
    for row in rows.values():
        assert all(time > 0 for time in row["ms"])
        assert 2 == len(row["ms"]) == len(row["x"])
    assert [1.0, 1.0] == rows["AdamW of torch, fused", "float32"]["x"]
