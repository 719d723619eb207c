"""Separate trials of providers from the torch settings and the random state of the caller."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from neaptide_kernels.accelerator import forked_random

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Set torch's defaults while the context is open; afterwards restore settings and generators.

    A trial must not change the random numbers that a run draws. The result of a trial must not
    depend on autocast or `inference_mode`.
    """
    dtype = torch.get_default_dtype()
    with (
        forked_random(device),
        torch.inference_mode(mode=False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch.device("cpu"),
    ):
        if dtype == torch.float32:
            yield
            return
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
