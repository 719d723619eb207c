"""Beside each plugin, two processes train as one does or refuse: the table of the page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from company_of_processes import CAST, EXACT, STAGES, compared, names, table

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")


def test_the_page_has_a_row_for_each_plugin() -> None:
    assert names() == sorted(table())


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_page_says_how_it_trains(name: str, tmp_path: Path) -> None:
    for found, told in zip(compared(name, tmp_path), table()[name][: len(STAGES)], strict=True):
        if "refused" in told or "refused" in found:
            assert told == found
        else:
            assert float(found) <= max(EXACT, 10 * float(told))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_with_weights_cast_it_trains_where_stage_3_does(name: str, tmp_path: Path) -> None:
    (found,) = compared(name, tmp_path, (CAST,))
    told = table()[name][STAGES.index("3")]
    if name == "mixed-precision":
        assert "refused: mixed-precision casts weights at each use" in found
    elif "refused" in told or "refused" in found:
        assert told == found
    else:
        assert float(found) <= 2e-3
