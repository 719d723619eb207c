"""Plans of training with a disk below RAM: nothing is written, and the drive's life is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from neaptide import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.machine import target
from neaptide_verbs.plan.planning import plan

if TYPE_CHECKING:
    from neaptide_verbs.plan.value import Plan

GIB = 2**30
LAYERS, WIDTH = 6, 256
HOMES = LAYERS * 12 * WIDTH * WIDTH * 4
"""Bytes of the blocks' weights, without biases and norms; AdamW's state is twice as large."""


def planned(
    ram_gib: float | None, device: str = "rtx4090", inputs: str = "device", **machine: Any
) -> Plan:
    streaming = {"update": "in_backward", "clip": "none", "inputs": inputs}
    if ram_gib is not None:
        streaming |= {"tier": "disk", "path": "/where/no/disk/is", "ram_gib": ram_gib}
    config = {
        "model": {
            "name": "builtin:byte-gpt",
            "options": {"layers": LAYERS, "width": WIDTH, "heads": 4, "context": 64},
        },
        "data": {"name": "builtin:python-stdlib", "options": {"context": 64}},
        "train": {"steps": 10, "batch_size": 4},
        "plugins": {"layer-streaming": streaming},
    }
    return plan(configured(config, ())[0], target(device, 8.0, **machine))


@pytest.mark.parametrize("device", ["rtx4090", "cpu"])
def test_what_is_on_the_disk_is_not_in_ram(device: str) -> None:
    in_ram, on_disk, half = (planned(ram, device) for ram in (None, 0.0, 1.05 * HOMES / GIB))
    assert "disk" not in in_ram.tiers
    assert not in_ram.disk_written
    assert on_disk.tiers["disk"].needed == pytest.approx(3 * HOMES, rel=0.03)
    assert half.tiers["disk"].needed == pytest.approx(2 * HOMES, rel=0.03)
    held = [found.tiers["RAM"].moments["full update"] for found in (in_ram, on_disk)]
    saved = held[0] - held[1]
    # A CPU uses state where it is in RAM; that on a disk is copied to two slots.
    slots = 2 * (2 * HOMES // LAYERS) if device == "cpu" else 0
    assert saved == pytest.approx(3 * HOMES - slots, rel=0.15)


def test_a_step_writes_what_is_there_once() -> None:
    found = planned(0.0)
    assert found.disk_written == pytest.approx(found.tiers["disk"].needed, rel=0.01)
    assert found.busy["disk"] > 0
    assert "an update writes" in str(found)
    assert "a day: a drive rated for 600 TB lasts at least" in str(found)


def test_inputs_of_blocks_on_the_disk_are_known() -> None:
    in_ram, on_disk = (planned(0.0, inputs=inputs) for inputs in ("host", "disk"))
    inputs = LAYERS * 4 * 64 * WIDTH * 4  # four windows of 64 bytes, in float32
    assert on_disk.tiers["disk"].needed - in_ram.tiers["disk"].needed == inputs
    assert on_disk.disk_written - in_ram.disk_written == inputs
    ram = [found.tiers["RAM"].moments["full update"] for found in (in_ram, on_disk)]
    assert ram[0] - ram[1] == pytest.approx(inputs, rel=0.05)
    assert on_disk.busy["disk"] > in_ram.busy["disk"]


def test_a_slow_disk_binds() -> None:
    fast, slow = planned(0.0, disk_rate=50.0), planned(0.0, disk_rate=0.5)
    assert slow.bound_by == "disk"
    assert fast.seconds_per_step < slow.seconds_per_step
    moved = 5 * HOMES + 2 * HOMES  # weights read twice and state once, all written once
    assert slow.seconds_per_step == pytest.approx(moved / 0.5e9, rel=0.1)


def test_a_disk_that_is_too_small_is_told() -> None:
    found = planned(0.0, disk=0.001)
    assert not found.fits
    assert "disk needs" in str(found)
    assert planned(0.0, disk=1.0).fits


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"disk": 0.0}, r"a disk has more than 0 GB \(got 0 @ --disk\)"),
        ({"disk_rate": -1.0}, r"a disk has more than 0 GB/s \(got -1 @ --disk-rate\)"),
    ],
)
def test_a_disk_that_cannot_be_is_refused(given: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        target("rtx4090", 8.0, **given)


def test_rates_of_a_disk_replace_those_of_the_profile() -> None:
    rates = profiles.load("rtx4090").rates
    found = target("rtx4090", None, disk_rate=3.0).rates
    assert found == attrs.evolve(rates, disk_read=3e9, disk_write=3e9)
