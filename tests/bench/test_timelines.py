"""A traced step on the simulated GPU: what binds, and that the next state comes before the step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPT = """
import json, os, sys
sys.path.insert(0, "bench")
from dataclasses import replace
from scaling import configurations
from scaling.simulation import train
from scaling.waits import as_json, steady

configurations.SHAPES["small"] = configurations.Shape(6, 2048, 16, 5632, 4096)
case = configurations.Configuration("T", "small", 4, 4096, 2048)
traced = train(case, "h200", 4 << 30, 1, {"optimizer_slots": 3})
found = as_json(steady(traced), traced, case.tokens)
last = [what for start, _, what in traced.labels if traced.ends[-2] <= start < traced.ends[-1]]
found["last"] = [what for what in last if what.startswith("fetch state")][-1]
print(json.dumps(found), flush=True)
os._exit(0)
"""


def test_a_step_is_traced_and_its_engines_are_told(tmp_path: Path) -> None:
    pytest.importorskip("simulated_gpu_pytest", reason="the simulated GPU is not installed")
    script = tmp_path / "traced.py"
    script.write_text(SCRIPT.replace('"bench"', repr(str(BENCH))))
    command = [sys.executable, "-W", "ignore", "-m", "simulated_gpu", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["races"] == 0
    assert found["bound"] == "to_device"  # 4,096 tokens are little work
    assert 0.7 < found["share"] < 1
    idle = found["seconds"] - found["busy"]["to_device"]
    assert sum(found["waits"].values()) == pytest.approx(idle, rel=1e-6, abs=1e-9)
    assert {len(line) for line in found["chart"].values()} == {100}
    assert set("FBU") <= set(found["chart"]["compute"])
    assert found["last"] in (
        "fetch state of blocks.5",
        "fetch state of blocks.4",
    )  # the next step's
    assert found["allocated"] <= found["reserved"] <= 4 << 30
