"""The dtype of a forward, and the autocast context for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide.api.timeline import NOTHING
from neaptide_toolkit.machine.devices import lacks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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


def computing_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return a context that runs matrix products and convolutions in `dtype`.

    float32 turns autocast off; where it is off already, the context is `NOTHING`.
    """
    if dtype is not torch.float32:
        return _Uncached(device.type, dtype=dtype)
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, dtype=dtype, enabled=False)
    return NOTHING


class _Uncached(torch.autocast):
    """Autocast whose casts of weights are cached only until its end.

    This matters if the caller has an autocast context around the training loop: torch would keep
    the casts, and use them after an update has changed the weights.
    """

    def __exit__(self, *error: object) -> None:
        """End autocast, and drop the casts."""
        super().__exit__(*error)
        torch.clear_autocast_cache()


def widened(loss: torch.Tensor) -> torch.Tensor:
    """Return `loss` in float32 or wider, for sums and means over batches."""
    if loss.dtype is torch.float32:
        return loss
    return loss.to(torch.promote_types(loss.dtype, torch.float32))
