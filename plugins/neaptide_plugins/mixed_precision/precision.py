"""Which dtype a forward computes in: the table of names, and the recommendation for a device."""

from __future__ import annotations

import torch

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
    """Return the dtype `precision` stands for on `device`; `auto` is the recommended one."""
    if precision != "auto":
        return DTYPES[precision]
    return recommend(torch.cuda.get_device_capability(device) if device.type == "cuda" else None)
