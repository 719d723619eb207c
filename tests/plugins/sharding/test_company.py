"""Beside each plugin, two processes train as one does or refuse: the table of the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from company_of_processes import STAGES, compared, names

PAGE = Path(__file__).resolve().parents[3] / "docs" / "many-gpus.md"
EXACT = 1e-6
"""Relative; what the page says of plugins that compute in float32."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")


def table() -> dict[str, list[str]]:
    """Return the table of the page: the cells of each stage."""
    rows = (
        line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()
    )
    return {row[0]: row[1:] for row in rows if len(row) == 1 + len(STAGES) and row[0] in names()}


def test_the_page_has_a_row_for_each_plugin() -> None:
    assert names() == sorted(table())


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_page_says_how_it_trains(name: str, tmp_path: Path) -> None:
    for found, told in zip(compared(name, tmp_path), table()[name], strict=True):
        if "refused" in told or "refused" in found:
            assert told == found
        else:
            assert float(found) <= max(EXACT, 10 * float(told))
