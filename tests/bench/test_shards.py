"""The bench of shards: a process has its share of the memory, as planned; times are compared."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it counts as Linux does")
SMALL = ("--layers", "2", "--width", "64", "--rows", "4", "--rounds", "2", "--steps", "1")
MOST = 0.27
"""Of the memory of one process, with shards in four."""


@pytest.mark.slow
def test_a_process_has_its_share_of_weights_gradients_and_state(tmp_path: Path) -> None:
    report, _, _ = measured("plugins/shards.py", tmp_path, "--only", "memory", *SMALL)
    rows = {row["stage"]: row for row in report["memory"]}
    assert ["replicate", 1, 2, 3] == [*rows]
    for stage in (2, 3):
        assert rows[stage]["tensors_share"] <= MOST
        assert rows[stage]["planned"] == pytest.approx(rows[stage]["tensors"], rel=0.01)
    assert rows[1]["tensors_share"] <= 0.5 + 0.5 * MOST
    assert rows["replicate"]["tensors_share"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.slow
def test_both_ways_make_the_same_computation(tmp_path: Path) -> None:
    report, out, _ = measured("plugins/shards.py", tmp_path, "--only", "time", *SMALL)
    assert report["time"]["plain_ms"] > 0.0
    assert f"{report['time']['ratio']}" in out
