"""Where samples are made and tried: nothing of the caller's settings, and no trace left there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Hold torch's defaults for what a trial runs, and give the random generators back as found.

    A run must draw the same numbers whether a kernel was tried in it or not, and a kernel is as
    right under autocast or `inference_mode` as elsewhere.
    """
    generators = [torch.cuda.current_device()] if device.type == "cuda" else []
    dtype = torch.get_default_dtype()
    with (
        torch.random.fork_rng(generators),
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
