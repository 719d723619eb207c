"""The rates of a device are measured, stored and planned with, and a run is held to its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import simulated_gpu
import torch

import neaptide
from neaptide import devices
from neaptide.cli import main
from neaptide.errors import DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine import measuring, profiles
from neaptide_toolkit.machine.profiles import Rates
from neaptide_toolkit.testing import kinds
from neaptide_verbs.plan.before_run import CountedFactory
from neaptide_verbs.plan.out_of_memory import way_out

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "model": {"name": f"{kinds.__name__}:deep", "options": {"width": 64}},
    "data": {"name": f"{kinds.__name__}:sequences", "options": {"width": 64}},
    "train": {"device": "cuda"},
}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_profile_has_every_rate(tmp_path: Path, kind: str) -> None:
    sizes = attrs.evolve(measuring.TINY, copied=64 * measuring.MIB)
    found = measuring.profile(sizes, torch.device(kind), tmp_path)
    rates = found["rates"]
    assert rates.keys() == {field.name for field in attrs.fields(Rates)}
    assert all(rate > 0 for name, rate in rates.items() if name != "launch_device")
    if kind == "cuda":
        given = simulated_gpu.rates()
        for name in ("to_device", "to_host"):
            assert rates[name] == pytest.approx(given[name], rel=0.05)


def test_doctor_measures_the_device_and_plan_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "Sizes", lambda: measuring.TINY)
    assert main(["doctor", "--bench", "--dir", str(tmp_path), "--json"]) == 0
    stored = profiles.load(tmp_path / "cache" / "neaptide" / "machine.json")
    assert json.loads(capsys.readouterr().out)["rates"]["to_device"] == stored.rates.to_device
    assert neaptide.plan(None, CONFIG).seconds_per_step > 0
    assert neaptide.plan(None, CONFIG, "cpu").seconds_per_step is None
    assert neaptide.plan(None, CONFIG, "rtx4090", ram=64).fits


def test_a_device_without_events_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "api_of", lambda _device: object())
    assert main(["doctor", "--bench"]) == 1
    assert "rates are measured by events, which 'cuda' does not have" in capsys.readouterr().err


def test_a_tensor_larger_than_ram_is_refused_before_it_is_made() -> None:
    with (
        pytest.raises(DoesNotFitError, match="the model has a tensor of"),
        CountedFactory(1e9, 1e6),
    ):
        torch.zeros(2**20)
    with CountedFactory(1e9, 1e6):
        assert torch.zeros(2**20, device="cuda").is_cuda


def test_after_out_of_memory_the_plan_and_what_was_asked_for_are_compared() -> None:
    config = configured(CONFIG, ())[0]
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 900.00 GiB.")
    assert "the plan was wrong: it says" in way_out(config, error)
