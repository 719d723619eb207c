"""Each test on one device of 1 GiB with the rates of a fast card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import simulated_gpu
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

RATES = {
    "flops_half": 790e12, "flops_single": 51e12, "bandwidth": 4.8e12, "to_device": 55e9,
    "to_host": 55e9, "peer": 100e9, "host_bandwidth": 200e9, "launch_host": 5e-6,
    "launch_device": 2e-6, "copy_latency": 8e-6, "capacity": 1 << 30, "expandable_segments": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    torch.set_num_threads(1)
    simulated_gpu.configure(devices=1, **RATES)
    torch.cuda.empty_cache()
    simulated_gpu.reset()
    yield
    simulated_gpu.configure(devices=1, **RATES)
