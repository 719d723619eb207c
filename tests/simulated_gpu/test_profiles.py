"""The simulated device accepts each machine profile that the toolkit ships."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import simulated_gpu
import torch

from neaptide_toolkit.machine import profiles

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def machine_of_the_other_tests() -> Iterator[None]:
    kept = simulated_gpu.rates()
    yield
    simulated_gpu.configure(**kept)


@pytest.mark.parametrize("name", profiles.names())
@pytest.mark.usefixtures("machine_of_the_other_tests")
def test_a_shipped_profile_is_the_simulated_machine(name: str) -> None:
    machine = profiles.load(name)
    simulated_gpu.configure(profiles.path_of(name))
    assert machine.rates.capacity == torch.cuda.get_device_properties().total_memory
    assert {"expandable_segments"} == simulated_gpu.rates().keys() - machine.sources.keys()
    torch.cuda.empty_cache()
    simulated_gpu.reset()
    size = 1 << 20
    torch.ones(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert math.isclose(
        machine.rates.launch_host + machine.rates.launch_device + size / machine.rates.bandwidth,
        simulated_gpu.statistics()["seconds"],
    )
