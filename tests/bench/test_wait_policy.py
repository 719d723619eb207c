"""The bench of OpenMP's wait policy measures both policies, on idle and on busy cores."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pages import ROOT


@pytest.mark.slow  # other tests would run on busy cores
def test_both_policies_are_measured_on_idle_and_on_busy_cores() -> None:
    script = ROOT / "bench" / "runs" / "wait_policy.py"
    command = [sys.executable, str(script), "--rounds", "2", "--seconds", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split("|")[1:4] for line in done.stdout.splitlines()[2:]]
    assert [row[1].split()[0] for row in rows] == ["default", "PASSIVE"] * 2
    others = [int(row[0]) for row in rows]
    assert others[:2] == [0, 0]
    assert min(others[2:]) > 0
    assert all(float(row[2].split()[0]) > 0.0 for row in rows)
