"""The bench of start-up compares a run with a script, and says what the run imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_bench_writes_what_a_run_adds(tmp_path: Path) -> None:
    written, out, _ = measured("runs/startup.py", tmp_path, "--rounds", "1")
    for kind in ("wall", "cpu"):
        row = written["seconds"][kind]
        (script,), (run,), (more,) = row["script"], row["run"], row["run - script"]
        assert script > 0
        assert run - script == more
    assert written["imports_ms"]["neaptide"] > 0
    assert "run - script" in out
