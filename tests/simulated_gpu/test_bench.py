"""Benches that `bench/gpu.py` does not run, on the device; and the profile that it measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neaptide_toolkit.machine import profiles

BENCH = Path(__file__).resolve().parents[2] / "bench"


def on_device(*arguments: object, capacity: float = 4) -> subprocess.CompletedProcess[str]:
    program = ["-m", "simulated_gpu", "--capacity", str(capacity), *map(str, arguments)]
    command = [sys.executable, "-W", "ignore", *program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_predicting_trains_on_the_device(tmp_path: Path) -> None:
    small = ["--set", "train.steps=40", "--set", "train.batch_size=16", "--jobs", 1, "--as-is"]
    chosen = ["--ideas", "drift", "--tasks", "photo", "--seeds", "7"]
    script = BENCH / "predict.py"
    done = on_device(script, *chosen, *small, "--out", tmp_path, "--set", "train.device='cuda'")
    assert 0 == done.returncode, done.stderr[-2000:]
    assert "== drift on photo" in done.stdout


MEASURE = f"""
import json, sys
from pathlib import Path

sys.path.insert(0, {str(BENCH)!r})
import simulated_gpu, torch
from machine_profile import Sizes, profile

folder = Path(sys.argv[1])
with simulated_gpu.fake_data():
    sizes = Sizes(host_side=64, file=1 << 20, operations=300)
    found = profile(sizes, torch.device("cuda", 0), folder)
(folder / "profile.json").write_text(json.dumps(found))
"""


def test_the_measured_profile_is_the_simulated_machine(tmp_path: Path) -> None:
    given = profiles.load("h200").rates
    program, path = tmp_path / "measure.py", tmp_path / "profile.json"
    program.write_text(MEASURE)
    machine = ["--profile", str(profiles.path_of("h200"))]
    command = [sys.executable, "-m", "simulated_gpu", *machine, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-2000:]
    rates = profiles.load(path).rates
    for name in ("flops_half", "flops_single", "bandwidth", "to_device", "to_host"):
        assert getattr(rates, name) == pytest.approx(getattr(given, name), rel=0.04), name
    assert rates.launch_device == pytest.approx(given.launch_device, rel=0.05)
    assert rates.copy_latency == pytest.approx(given.copy_latency, rel=0.05)
    assert given.capacity == rates.capacity
