"""The dtype of a forward, and the autocast context for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from neaptide_toolkit.machine.devices import lacks

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: str, device: torch.device) -> torch.dtype:
    """Return autocast's dtype for `precision` on `device`.

    `auto` is bfloat16, or float16 on a device without bfloat16. bfloat16 has the range of float32
    and needs no loss scaling. For `fp8` the result is bfloat16: only products with weights are
    computed in 8 bits.
    """
    if precision == "fp8":
        return torch.bfloat16
    if precision != "auto":
        return DTYPES[precision]
    return torch.bfloat16 if lacks(device, "bf16") is None else torch.float16


@contextmanager
def computing_in(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run matrix products and convolutions in `dtype`; float32 turns autocast off.

    Casts of weights are cached only until this context ends. This matters if the caller has an
    autocast context around the training loop: torch would keep the casts, and use them after an
    update has changed the weights.
    """
    lowered = dtype is not torch.float32
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=lowered):
            yield
    finally:
        if lowered:
            torch.clear_autocast_cache()


def widened(loss: torch.Tensor) -> torch.Tensor:
    """Return `loss` in float32 or wider, for sums and means over batches."""
    return loss.to(torch.promote_types(loss.dtype, torch.float32))
