"""Machines: a profile from a file, single rates, and what a wrong one says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import simulated_gpu
import torch

if TYPE_CHECKING:
    from pathlib import Path

NO_LATENCY = {"launch_host": 0, "launch_device": 0, "copy_latency": 0}


def seconds_of_a_megabyte() -> float:
    simulated_gpu.reset()
    torch.ones(1_000_000, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return simulated_gpu.statistics()["seconds"]


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    content = {"name": "mine", "rates": {"bandwidth": 1e9, **NO_LATENCY}, "sources": {}}
    path.write_text(json.dumps(content), "utf-8")
    simulated_gpu.configure(path)
    assert seconds_of_a_megabyte() == pytest.approx(1e-3)
    simulated_gpu.configure(path, bandwidth=2e9)
    assert seconds_of_a_megabyte() == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ('{"rates": {"bandwith": 1}}', KeyError, "no rate 'bandwith'; there is flops_half,"),
        ('{"rates": {"bandwidth": 0}}', ValueError, "bandwidth must be a number from 1 .*, not 0"),
        ('{"rates": {"peer": "fast"}}', ValueError, "peer must be a number .* not 'fast'"),
        ('{"rates": {"peer": NaN}}', ValueError, "peer must be a number"),
        ('{"bandwidth": 1}', ValueError, "an object 'rates' is needed"),
        ("[]", ValueError, "an object 'rates' is needed"),
        ("{", ValueError, "not JSON"),
    ],
)
def test_a_file_that_is_no_machine_is_refused_with_its_path(
    text: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text, "utf-8")
    with pytest.raises(error, match=rf"machine\.json: .*{said}"):
        simulated_gpu.configure(path)


@pytest.mark.parametrize("wrong", [{"bandwith": 1.0}, {"launch_host": -1.0}])
def test_a_wrong_rate_changes_nothing(wrong: dict[str, Any]) -> None:
    simulated_gpu.configure(bandwidth=1e9, **NO_LATENCY)
    with pytest.raises((KeyError, ValueError), match=next(iter(wrong))):
        simulated_gpu.configure(bandwidth=1.0, devices=2, **wrong)
    assert torch.cuda.device_count() == 1
    assert simulated_gpu.rates()["bandwidth"] == 1e9


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"expandable_segments": "yes"}, "must be true or false, not 'yes'"),
        ({"bandwidth": True}, "must be a number from 1 .*, not True"),
        ({"capacity": 2**70}, "must be a number from 0 .*, not 1180591620717411303424"),
        ({"devices": 1.5}, "devices must be a whole number, not 1.5"),
    ],
)
def test_what_is_no_setting_is_refused(changed: dict[str, Any], why: str) -> None:
    before = simulated_gpu.rates()
    with pytest.raises(ValueError, match=why):
        simulated_gpu.configure(**changed)
    assert before == simulated_gpu.rates()


def test_a_capacity_below_what_is_used_leaves_nothing_free() -> None:
    before = simulated_gpu.rates()["capacity"]
    held = torch.ones(1 << 20, device="cuda")
    simulated_gpu.configure(capacity=1e6)
    free, total = torch.cuda.mem_get_info()
    simulated_gpu.configure(capacity=before)
    assert (0, 1_000_000, 1 << 20) == (free, total, held.numel())
