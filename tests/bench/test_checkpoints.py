"""The bench of checkpoints measures each way to save and load in each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@pytest.mark.slow
def test_each_way_is_measured_and_neaptide_takes_little_memory(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--gib", "0.2", "--folder", str(tmp_path))
    report, out, _ = measured("models/checkpoints.py", tmp_path, *small)
    for work in ("save", "load"):
        rows = {row["way"]: row for row in report[work]}
        assert {"disk", "sha256", "neaptide", "torch.save", "safetensors"} < rows.keys()
        for way, row in rows.items():
            assert f"| {way} |" in out
            assert row["seconds"][0] > 0.0
            assert row["with_sha256"][0] >= row["seconds"][0]
        assert rows["neaptide"]["with_sha256"] == rows["neaptide"]["seconds"]
        assert rows["neaptide"]["beyond"][0] <= 64 * MIB
        bound = max(rows[name]["seconds"][0] for name in ("disk", "sha256"))
        assert rows["neaptide"]["x_bound"][0] == rows["neaptide"]["seconds"][0] / bound
    assert ["measured.json"] == [one.name for one in tmp_path.iterdir()], "the files are gone"


@pytest.mark.slow
def test_a_save_holds_training_up_standing_and_slower(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--gib", "0.1", "--updates", "3", "--folder", str(tmp_path))
    report, out, _ = measured("models/held_up.py", tmp_path, *small)
    assert ["neaptide", "background-save"] == [row["way"] for row in report["saves"]]
    for row in report["saves"]:
        assert f"| {row['way']} |" in out
        (standing,), (slower,), (under_way,) = row["standing"], row["slower"], row["under_way"]
        assert 0 < standing
        assert 0 < under_way
        assert row["share"] == [(standing + slower) / 900]
    assert ["measured.json"] == [one.name for one in tmp_path.iterdir()], "the files are gone"
