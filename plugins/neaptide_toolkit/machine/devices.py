"""What a kind of device can do, and what it lacks.

Everything is asked of torch by device, so a kind of device that torch adds needs no change here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch

from neaptide.devices import api_of, has_streams, widest
from neaptide_kernels.accelerator import compute_capability
from neaptide_kernels.support import no_triton_on
from neaptide_toolkit.low_precision.hardware import fp8_slower, int8_slower

from .pretended import is_pretended

if TYPE_CHECKING:
    from collections.abc import Callable

Capability = Literal[
    "streams",
    "pinned copies",
    "registered memory",
    "allocator statistics",
    "float64",
    "bf16",
    "fp8",
    "int8",
    "Triton",
]
"""A capability of a device:

- `streams`: queues of work with events, so that copies run beside the computation
- `pinned copies`: copies from and to page-locked memory, for which the host does not wait
- `registered memory`: page-locking of memory that torch has not allocated
- `allocator statistics`: counts of bytes allocated, reserved, and at most allocated
- `float64`: sums in float64
- `bf16`: bfloat16 in hardware, so that it is not slower than float16
- `fp8`, `int8`: matrix products in 8 bits that are faster than those in 16 bits
- `Triton`: runs Neaptide's Triton kernels
"""

BF16_UNITS = (8, 0)
"""Lowest CUDA compute capability with bfloat16 in hardware. Below it bfloat16 is emulated."""
_BF16_MACOS = (14, 0)


def capabilities(device: torch.device) -> dict[Capability, str | None]:
    """Return each capability with the reason why `device` lacks it; None if the device has it."""
    return {name: lacks(device, name) for name in get_args(Capability)}


def lacks(device: torch.device, *needed: Capability) -> str | None:
    """Return why `device` lacks one of the capabilities `needed`, in one line; None if it has all.

    For some capabilities the device must be usable. No memory is allocated for long.
    """
    return next((reason for name in needed if (reason := _REASONS[name](device))), None)


def free_bytes(device: torch.device) -> int | None:
    """Return the free bytes of a device with memory of its own; None for others."""
    if is_pretended():
        return None
    api = api_of(device)
    return int(api.mem_get_info(device)[0]) if hasattr(api, "mem_get_info") else None


def total_bytes(device: torch.device) -> int | None:
    """Return all bytes of a device with memory of its own; None for others."""
    api = api_of(device)
    if not hasattr(api, "get_device_properties"):
        return None
    return int(api.get_device_properties(device).total_memory)


def empty_cache(device: torch.device) -> None:
    """Give the memory that torch's allocator has in reserve back to the device, if it has some."""
    getattr(api_of(device), "empty_cache", lambda: None)()


def end_backward(device: torch.device) -> None:
    """Wait until autograd's thread for `device` has left its last backward.

    The caller of a backward hears of its end, or of an error in another thread, before that. The
    thread runs one backward after the other, so a second backward ends later.
    """
    if device.type != "cpu":
        with torch.enable_grad():
            one = torch.ones((), device=device, requires_grad=True)
            torch.autograd.grad(one.clone(), one)


def _no_streams(device: torch.device) -> str | None:
    if has_streams(device):
        return None
    if device.type == "cpu":
        return "a CPU has no streams"
    return f"torch has no streams on {device.type!r}, so copies cannot run beside the computation"


def _no_pinned_copies(device: torch.device) -> str | None:
    if has_streams(device):
        return None
    if device.type == "cpu":
        return "copies on a CPU need no pinned memory"
    return f"torch has no copies to {device.type!r} for which the host does not wait"


def _no_registered_memory(device: torch.device) -> str | None:
    if device.type == "cpu":
        return "copies on a CPU need no pinned memory"
    if hasattr(api_of(device), "cudart"):
        return None
    return (
        f"torch cannot page-lock a buffer for {device.type!r}, so copies from and to the host are "
        f"slower"
    )


def _no_statistics(device: torch.device) -> str | None:
    if hasattr(api_of(device), "memory_stats_as_nested_dict"):
        return None
    if device.type == "cpu":
        return "no accelerator"
    return f"torch has no statistics of the memory of {device.type!r}"


def _no_float64(device: torch.device) -> str | None:
    if widest(device) is torch.float64:
        return None
    return f"the device {str(device)!r} has no float64"


def _no_bf16(device: torch.device) -> str | None:
    if device.type == "mps" and not torch.backends.mps.is_macos_or_newer(*_BF16_MACOS):
        return f"'mps' has bf16 from macOS {_dotted(_BF16_MACOS)} on"
    capability = compute_capability(device)
    if capability is None or capability >= BF16_UNITS:
        return None
    return f"a GPU of compute capability {_dotted(capability)} emulates bf16"


def _no_triton(device: torch.device) -> str | None:
    return no_triton_on(device.type, compute_capability(device)) or None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_REASONS: dict[Capability, Callable[[torch.device], str | None]] = {
    "streams": _no_streams,
    "pinned copies": _no_pinned_copies,
    "registered memory": _no_registered_memory,
    "allocator statistics": _no_statistics,
    "float64": _no_float64,
    "bf16": _no_bf16,
    "fp8": fp8_slower,
    "int8": int8_slower,
    "Triton": _no_triton,
}
