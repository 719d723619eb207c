"""A plan says that a device is large enough where the run's allocator stays below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from budgets import Judged
from support import some

HELPERS = Path(__file__).parents[1] / "helpers"
NEAR = 0.02
"""How far a plan may be off, as a part of what the run takes."""
PROGRAM = """
import json, sys
import simulated_gpu  # before torch
import attrs
from budgets import drawn, judged
case = drawn(int(sys.argv[1]), "cuda", ("deep", "convolutions"), (8, 32, 64, 128, 192, 256, 384))
print(json.dumps(attrs.asdict(judged(case))))
"""


@pytest.mark.parametrize("seed", some(range(80), 16))
def test_what_fits_stays_below_the_budget_and_nothing_else_does(seed: int) -> None:
    found = judged(seed)
    if found.fits:
        assert found.measured <= found.budget
    else:
        assert found.measured * (1 + NEAR) > found.budget
    assert found.planned == pytest.approx(found.measured, rel=NEAR)


def judged(seed: int) -> Judged:
    """Judge a case in a process of its own: segments with room from other tests would count."""
    command = [sys.executable, "-c", PROGRAM, str(seed)]
    variables = os.environ | {"PYTHONPATH": str(HELPERS)}
    done = subprocess.run(command, env=variables, check=True, text=True, stdout=subprocess.PIPE)
    return Judged(**json.loads(done.stdout.splitlines()[-1]))
