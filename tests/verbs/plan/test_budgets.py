"""A plan says that a budget is enough where the run stays below it, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from budgets import GIB, drawn, judged, of_tensors
from support import some

from neaptide.cli import main
from neaptide.errors import DoesNotFitError
from neaptide_verbs.plan.machine import CONTEXT, target
from neaptide_verbs.plan.planning import plan

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("deep", "encoder", "convolutions", "experts", "recurrent")
WIDTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128)
LOW = 0.98
"""The least part of what a run takes that a plan may say."""
HIGH, HIGH_IN_HALF = 1.05, 1.3 if torch.cpu._is_amx_tile_supported() else 3.2
"""The most. In 16 bits, a plan counts the largest copies that oneDNN may make of matrices, and of
images: a processor without tiles (AMX) makes few of the latter."""


@pytest.mark.parametrize("seed", some(range(200), 20))
def test_what_fits_stays_below_the_budget_and_nothing_else_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tensors(monkeypatch)
    case = drawn(seed, "cpu", NAMES, WIDTHS)
    if case.is_of_onednn and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("plans count what oneDNN takes with AVX-512")
    found = judged(case)
    high = HIGH_IN_HALF if case.is_half else HIGH
    if found.fits:
        assert found.measured <= found.budget
    else:
        assert found.measured * high > found.budget
    assert LOW <= found.planned / found.measured <= high


@pytest.mark.parametrize("seed", some(range(40), 40))
def test_what_is_written_passes_the_check_and_its_own_plan_fits(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = drawn(seed, "cpu", ("deep", "encoder"), (128, 192, 256))
    needed = plan(case.config, target(1, 64)).peak_bytes["device"]
    gib = (CONTEXT + (needed - CONTEXT) * case.share) / GIB
    given, written = tmp_path / "given.json", tmp_path / "written.toml"
    given.write_text(case.text)
    machine = ("--device", repr(gib), "--ram", "64")
    ended = main(["plan", str(given), *machine, "--write", str(written)])
    assert ended == (0 if case.share >= 1 else DoesNotFitError.exit_code)
    assert written.exists() != ("is not written" in capsys.readouterr().err)
    if written.exists():
        assert main(["config", "check", str(written)]) == 0
        assert main(["plan", str(written), *machine]) == 0
