"""The bench of plugins beside work by hand compares each with its partner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "plugins"


def test_the_bench_writes_what_a_plugin_adds_to_work_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "hand.json"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", str(BENCH / "by_hand.py")),
            *("--rounds", "2", "--json", str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    written = json.loads(path.read_text(encoding="utf-8"))
    partners = {
        table: {row["subject"]: row["partner"] for row in written[table]}
        for table in ("step", "tensor")
    }
    assert "autocast by hand" == partners["step"]["mixed-precision"]
    assert "accumulation by hand" == partners["step"]["gradient-accumulation"]
    riders = ("ema", "predictor-drift", "predictor-momentum", "predictor-dmd")
    assert {"trainer"} == {partners["tensor"][name] for name in riders}
    assert all(row["us_a_step"] > 0 for table in partners for row in written[table])
