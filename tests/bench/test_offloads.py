"""Other offloads on the simulated GPU: one runs, and the page has the rows that are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SCRIPT = """
import sys
sys.path[:0] = [BENCH, BENCH + "/simulated"]
import offloads
from scaling import configurations

configurations.SHAPES["124m"] = configurations.Shape(6, 512, 8, 1408, 256, tied=True)
offloads.MODELS["124m"] = 6
offloads.made("124m", sys.argv[1])
"""


def test_fsdp2_is_timed_on_every_card_with_its_update_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("simulated_gpu_pytest", reason="the simulated GPU is not installed")
    script = tmp_path / "one.py"
    script.write_text(SCRIPT.replace("BENCH", repr(str(BENCH))))
    command = [sys.executable, "-W", "ignore", "-m", "simulated_gpu", str(script), "fsdp2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["races"] == 0
    assert row["allocated"] <= row["reserved"]
    cards = row["cards"]
    assert cards["h200"]["seconds"] < cards["rtx4090"]["seconds"] < cards["t4"]["seconds"]
    for card in cards.values():
        assert 0 < card["compute"] <= card["seconds"]
        assert 0.01 * card["seconds"] < card["host"] < card["seconds"]


def test_the_page_has_the_rows_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.syspath_prepend(str(BENCH / "simulated"))
    import offloads

    rows = json.loads((ROOT / "docs" / "benchmarks" / "offloads.json").read_text("utf-8"))
    page = (ROOT / "docs" / "benchmarks" / "scale.md").read_text("utf-8")
    assert f"{offloads.BEGIN}\n\n{offloads.table(rows)}\n\n{offloads.END}" in page
    assert {row["model"] for row in rows.values()} == set(offloads.MODELS)
