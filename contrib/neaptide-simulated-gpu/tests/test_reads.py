"""The host's reads by NumPy, `tolist` and DLPack are told where a copy still writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simulated_gpu
import torch
from racing import raced
from simulated_gpu import detect_races

if TYPE_CHECKING:
    from collections.abc import Callable

READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "asarray": np.asarray,
    "__array__": lambda tensor: tensor.__array__(),
    "a part": lambda tensor: tensor[3:9].numpy(),
    "tolist": lambda tensor: tensor.tolist(),
    "dlpack": np.from_dlpack,
}


def copied() -> tuple[torch.Tensor, torch.cuda.Event]:
    host, device = torch.zeros(4096).pin_memory(), torch.ones(4096, device="cuda")
    host.copy_(device, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event


@pytest.mark.parametrize("how", READS)
def test_a_read_while_a_copy_writes_is_told(how: str) -> None:
    host, _ = copied()
    with raced("the host's (numpy|tolist|__dlpack__) reads host memory at .*, written by copy to"):
        READS[how](host)


@pytest.mark.parametrize("how", READS)
def test_a_read_after_the_copy_is_not_told(how: str) -> None:
    host, event = copied()
    event.synchronize()
    with detect_races():
        READS[how](host)


@pytest.mark.parametrize("how", READS)
def test_a_read_takes_no_time_and_gives_what_is_there(how: str) -> None:
    host = torch.arange(16.0)
    before = simulated_gpu.statistics()["host_worked"]
    found = np.asarray(READS[how](host))
    if how != "a part":
        assert found.tolist() == list(range(16))
        assert simulated_gpu.statistics()["host_worked"] == before
