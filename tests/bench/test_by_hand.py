"""The bench of plugins beside work by hand compares each with its partner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


def test_the_bench_writes_what_a_plugin_adds_to_work_by_hand(tmp_path: Path) -> None:
    written, _, _ = measured("plugins/by_hand.py", tmp_path, "--rounds", "2")
    partners = {
        table: {row["subject"]: row["partner"] for row in written[table]}
        for table in ("step", "tensor")
    }
    assert "autocast by hand" == partners["step"]["mixed-precision"]
    assert "accumulation by hand" == partners["step"]["gradient-accumulation"]
    riders = ("ema", "predictor-drift", "predictor-momentum", "predictor-dmd")
    assert {"trainer"} == {partners["tensor"][name] for name in riders}
    assert all(row["us_a_step"] > 0 for table in partners for row in written[table])
    over = {row["subject"]: row["over_calls"] for row in written["step"]}
    assert 0 == over["bare loop"] < over["trainer"] < over["mixed-precision"]
