"""The bench of optimizer-offload: every strategy has its row, and frees what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_every_strategy_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    command = [sys.executable, "-W", "ignore", str(BENCH / "plugins" / "optimizer_offload.py")]
    done = subprocess.run(
        [*command, "--rounds", "1", "--width", "256", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    rows = {row["strategy"]: row for row in json.loads(path.read_text())["rows"]}
    assert {"none", "cpu", "pinned", "compress", "drop"} == rows.keys()
    freed = {name: 1 - row["bytes_in_predict"] / row["bytes_at_rest"] for name, row in rows.items()}
    assert 0.0 == freed["none"]
    assert all(0.6 <= freed[name] <= 0.7 for name in ("cpu", "pinned", "drop"))
    assert 0.4 <= freed["compress"] <= 0.5
    for name in rows:
        assert f"| {name} |" in done.stdout
