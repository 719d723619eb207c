"""The bench of data measures tokenizing, batches and training, and their ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_each_rate_and_ratio_is_measured_in_each_round(tmp_path: Path) -> None:
    small = ("--rounds", "2", "--seconds", "0.1", "--documents", "60")
    found, out, _ = measured("models/data.py", tmp_path, *small)
    assert found.pop("cores") >= 1
    assert all(len(values) == 2 and min(values) > 0.0 for values in found.values())
    assert all(f"| {name}" in out for name in found)
