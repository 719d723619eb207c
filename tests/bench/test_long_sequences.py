"""The table of long sequences: it is the file's, and a row is measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "benchmarks"
ROWS = json.loads((PAGES / "long-sequences.json").read_text())
WAYS = ("own", "sdpa", "flash-attention", "both")


def test_the_page_has_the_figures_of_the_file() -> None:
    page = (PAGES / "long-sequences.md").read_text()
    for row in ROWS:
        told = " | ".join(f"{row[way] / 2**20:,.0f}" if way in row else "" for way in WAYS)
        less = 1 - row["both"] / row["own"]
        assert f"| {row['family']} | {row['tokens']:,} | {told} | {less:.0%} |" in page


def test_a_row_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench" / "simulated")
    import long_sequences  # bench/ is no package

    row = next(one for one in ROWS if one["family"] == "GPTNeoX")
    for way in ("own", "both"):
        found = long_sequences.peak("GPTNeoX", row["tokens"], way)
        assert abs(found / row[way] - 1) < 0.02, way  # transformers and torch may be others
