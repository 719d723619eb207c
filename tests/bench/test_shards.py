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
    assert ["replicate", 1, 2, 3, "hybrid"] == [*rows]
    for stage, copies in ((2, 1), (3, 1), ("hybrid", 2)):
        assert rows[stage]["tensors_share"] <= copies * MOST
        assert rows[stage]["planned"] == pytest.approx(rows[stage]["tensors"], rel=0.01)
    assert rows[1]["tensors_share"] <= 0.5 + 0.5 * MOST
    assert rows["replicate"]["tensors_share"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.slow
def test_both_ways_make_the_same_computation(tmp_path: Path) -> None:
    report, out, _ = measured("plugins/shards.py", tmp_path, "--only", "time", *SMALL)
    assert report["time"]["plain_ms"] > 0.0
    assert f"{report['time']['ratio']}" in out


@pytest.mark.slow
def test_the_parts_of_a_save_are_measured(tmp_path: Path) -> None:
    sizes = ("--layers", "2", "--width", "64", "--rows", "4", "--rounds", "1")
    report, _, _ = measured("plugins/shard_saves.py", tmp_path, *sizes)
    for processes in ("1", "4", "4, the first writes"):
        assert min(report[processes].values()) > 0.0
    assert report["1"]["bytes"] == pytest.approx(report["4"]["bytes"], rel=0.01)
