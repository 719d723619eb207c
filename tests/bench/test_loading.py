"""The bench of loading measures each way in each round, and says whether the files were cold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@pytest.mark.slow
def test_each_way_is_measured_and_takes_no_more_memory_than_its_weights(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--gib", "0.06", "--folder", str(tmp_path))
    report, out, _ = measured("models/loading.py", tmp_path, *small)
    rows = {row["way"]: row for row in report["rows"]}
    assert ["reading", "reading, kept", "resident", "streamed", "transformers"] == [*rows]
    for way, row in rows.items():
        assert f"| {way} |" in out
        (beyond,) = row["anonymous_beyond_weights"]
        assert beyond <= 64 * MIB
        assert row["seconds"][0] > 0.0
    assert rows["transformers"]["anonymous_beyond_weights"][0] < -0.5 * report["bytes"]  # mapped
    assert abs(rows["resident"]["anonymous_beyond_weights"][0]) < 0.1 * report["bytes"]  # read
    assert ("NOT COLD" in out) == (report["stayed_in_cache"] >= 0.01)
    assert ["measured.json"] == [one.name for one in tmp_path.iterdir()], "the files are gone"
