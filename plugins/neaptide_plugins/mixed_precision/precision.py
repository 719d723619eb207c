"""Which dtype a device computes well in."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def recommended(device: torch.device) -> torch.dtype:
    """Return bfloat16 where the device has it, else float16.

    bfloat16 has float32's range and needs no loss scaling; CUDA devices have it in hardware from
    compute capability 8.0 on, and torch's CPU kernels support it everywhere.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return torch.float16
    return torch.bfloat16


def resolve(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype `name` stands for on `device`; `auto` is the recommended one."""
    return recommended(device) if name == "auto" else DTYPES[name]
