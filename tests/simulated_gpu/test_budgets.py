"""A plan says that a device is large enough where the run's allocator stays below it."""

from __future__ import annotations

import pytest
import simulated_gpu  # noqa: F401 - what is measured is its allocator
from budgets import drawn, judged
from support import some

NAMES = ("deep", "convolutions")
WIDTHS = (8, 32, 64, 128, 192, 256, 384)
NEAR = 0.02
"""How far a plan may be off, as a part of what the run takes."""


@pytest.mark.parametrize("seed", some(range(80), 8))
def test_what_fits_stays_below_the_budget_and_nothing_else_does(seed: int) -> None:
    found = judged(drawn(seed, "cuda", NAMES, WIDTHS))
    if found.fits:
        assert found.measured <= found.budget
    else:
        assert found.measured * (1 + NEAR) > found.budget
    assert found.planned == pytest.approx(found.measured, rel=NEAR)
