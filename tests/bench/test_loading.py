"""The bench of loading measures each way in each round, and says whether the files were cold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def test_each_way_is_measured_and_takes_no_more_memory_than_its_weights(tmp_path: Path) -> None:
    script, path = ROOT / "bench" / "models" / "loading.py", tmp_path / "loading.json"
    small = ["--rounds", "1", "--gib", "0.06", "--folder", str(tmp_path), "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(script), *small], capture_output=True, text=True, check=True
    )
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = {row["way"]: row for row in report["rows"]}
    assert ["reading", "reading, kept", "resident", "streamed", "transformers"] == [*rows]
    for way, row in rows.items():
        assert f"| {way} |" in done.stdout
        (beyond,) = row["anonymous_beyond_weights"]
        assert beyond <= 64 * MIB
        assert row["seconds"][0] > 0.0
    assert rows["resident"]["anonymous_beyond_weights"][0] < -0.5 * report["bytes"]
    assert ("NOT COLD" in done.stdout) == (report["stayed_in_cache"] >= 0.01)
    assert [path] == [*tmp_path.iterdir()], "the files are gone"
