"""Facts of accelerators that kernels depend on, and copies for which the host does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide.devices import api_of, has_streams

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def is_cuda(device: torch.device) -> bool:
    """Return whether torch reaches a device by `torch.cuda`: CUDA and ROCm."""
    return device.type == "cuda"


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a CUDA or ROCm device; None for other kinds of device."""
    return torch.cuda.get_device_capability(device) if is_cuda(device) else None


def is_capturing(kind: str) -> bool:
    """Return whether the current stream of a kind of device records a graph, such as a CUDA graph.

    The host must not wait for the device while a graph is recorded.
    """
    return bool(getattr(api_of(kind), "is_current_stream_capturing", bool)())


def name_of(kind: str) -> str:
    """Return the name of the current device of a kind, or the kind if torch knows no name."""
    return str(getattr(api_of(kind), "get_device_name", lambda: kind)())


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a CPU tensor to `device`. The host does not wait if the device has streams."""
    if has_streams(device):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """When the context ends, restore the random generators of the CPU and of `device`."""
    own = [] if device.type in {"cpu", "meta"} else [device]
    return torch.random.fork_rng(own, device_type=device.type if own else "cpu")


def has_attention_backends() -> bool:
    """Return whether torch is built with its attention kernels for CUDA or ROCm."""
    return bool(torch.backends.cuda.is_flash_attention_available())
