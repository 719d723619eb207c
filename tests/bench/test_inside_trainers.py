"""The bench of trainers inside trainers: both are measured, and compute the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "accelerate", "lightning"])
def test_a_library_is_measured_alone_and_with_neaptide_on_the_same_computation(
    library: str, tmp_path: Path
) -> None:
    small = ("--library", library, "--rounds", "2", "--steps", "1", "--tokens", "8")
    report, out, _ = measured("models/inside_trainers.py", tmp_path, *small)
    assert [row["gradient_accumulation_steps"] for row in report["rows"]] == [1, 4]
    for row in report["rows"]:
        assert row["library"] == library
        for clock in ("wall", "process"):
            assert row[clock]["alone_ms"] > 0.0
            assert f"{row[clock]['ratio']}" in out
