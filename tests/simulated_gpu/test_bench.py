"""Benches that `bench/gpu.py` does not run, on the device; and the profile that it measures."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_gpu
import torch
from simulated_gpu.machine import rates as rates_of_now

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


def test_the_measured_profile_is_the_simulated_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import machine_profile

    given = profiles.load("h200").rates
    before = rates_of_now()
    simulated_gpu.configure(profiles.path_of("h200"))
    sizes = machine_profile.Sizes(host_side=64, file=1 << 20, operations=300)
    gc.collect()  # what earlier tests left on the device
    try:
        with simulated_gpu.fake_data():
            found = machine_profile.profile(sizes, torch.device("cuda", 0), tmp_path)
    finally:
        simulated_gpu.configure(**before)
        sys.modules.pop("machine_profile")
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(found))
    rates = profiles.load(path).rates
    for name in ("flops_half", "flops_single", "bandwidth", "to_device", "to_host"):
        assert getattr(rates, name) == pytest.approx(getattr(given, name), rel=0.04), name
    assert rates.launch_device == pytest.approx(given.launch_device, rel=0.05)
    assert rates.copy_latency == pytest.approx(given.copy_latency, rel=0.05)
    assert given.capacity == rates.capacity
