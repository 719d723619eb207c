"""Which dtype a forward computes in, and the context it does so in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_NATIVE_BF16 = (8, 0)
"""CUDA compute capability from which on bfloat16 is computed in hardware, not emulated."""


def recommend(capability: tuple[int, int] | None) -> torch.dtype:
    """Return bfloat16, or float16 for a CUDA device of too low a compute `capability`.

    bfloat16 has the range of float32 and needs no loss scaling. None stands for a device that is
    not CUDA: torch's CPU kernels know bfloat16 everywhere.
    """
    if capability is not None and capability < _NATIVE_BF16:
        return torch.float16
    return torch.bfloat16


def resolve(precision: str, device: torch.device) -> torch.dtype:
    """Return autocast's dtype for `precision` on `device`; `auto` is the recommended one.

    In `fp8` it is bfloat16: what is no product with a weight is computed in that.
    """
    if precision == "fp8":
        return torch.bfloat16
    if precision != "auto":
        return DTYPES[precision]
    return recommend(torch.cuda.get_device_capability(device) if device.type == "cuda" else None)


@contextmanager
def computing_in(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run matrix products and convolutions in `dtype`; float32 turns autocast off.

    Casts of weights are shared within the context and dropped with it. torch alone would keep them
    inside an autocast around the caller's whole loop, past the update that outdates them.
    """
    lowered = dtype is not torch.float32
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=lowered):
            yield
    finally:
        if lowered:
            torch.clear_autocast_cache()


def widened(loss: torch.Tensor) -> torch.Tensor:
    """Return `loss` in float32 or wider, in which sums are divided and means added up."""
    return loss.to(torch.promote_types(loss.dtype, torch.float32))
