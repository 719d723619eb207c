"""Functions that torch has for each kind of device. The core names no kind of accelerator."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def api_of(device: torch.device | str) -> Any:
    """Return torch's module for a kind of device, such as `torch.xpu`; None if there is none."""
    try:
        return torch.get_device_module(device)
    except RuntimeError:  # meta tensors, no kind of device, or a backend that is not imported
        return None


def api_in_use() -> Any:
    """Return torch's module for the accelerator of this process; None before its first use."""
    device = torch.accelerator.current_accelerator()
    api = None if device is None else api_of(device)
    is_used = getattr(api, "is_initialized", getattr(api, "is_available", bool))
    return api if is_used() else None


def has_streams(device: torch.device) -> bool:
    """Return whether copies between pinned memory and `device` run while the host goes on."""
    return device.type != "cpu" and hasattr(api_of(device), "Stream")


def allocator_count(device: torch.device, count: str) -> int | None:
    """Return a count of torch's allocator in bytes, such as `memory_allocated`; None without it."""
    read = getattr(api_of(device), count, None)
    return None if read is None else int(read(device))


@cache
def widest(device: torch.device) -> torch.dtype:
    """Return the dtype of exact sums: float64, or float32 on a device without float64."""
    try:
        return torch.ones((), dtype=torch.float64, device=device).dtype
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return torch.float32
