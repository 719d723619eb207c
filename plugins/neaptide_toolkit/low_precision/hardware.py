"""Reasons why products in 8 bits would be slower on a device than the products they replace."""

from __future__ import annotations

import torch

from neaptide_kernels.accelerator import compute_capability, is_cuda

FP8_TENSOR_CORES = (8, 9)
"""Lowest CUDA compute capability with fp8 tensor cores."""

INT8_TENSOR_CORES = (7, 5)
"""Lowest CUDA compute capability with int8 tensor cores."""


def fp8_slower(device: torch.device) -> str | None:
    """Return why products in fp8 are slower on `device`, in one line; None if they are not."""
    return _slower(device, "fp8", FP8_TENSOR_CORES)


def int8_slower(device: torch.device) -> str | None:
    """Return why products in int8 are slower on `device`, in one line; None if they are not."""
    return _slower(device, "int8", INT8_TENSOR_CORES)


def fp8_missing(device: torch.device) -> str | None:
    """Return why torch has no fp8 product on `device`, in one line; None if no reason is known.

    torch's CUDA kernel raises an error on GPUs without fp8 tensor cores. On a CPU torch has a slow
    fp8 product.
    """
    capability = compute_capability(device)
    if capability is None:
        return untried("fp8", device)
    if torch.version.hip is not None:
        return None
    return reason_by_capability("fp8", capability, FP8_TENSOR_CORES)


def untried(dtype: str, device: torch.device) -> str | None:
    """Return a line if products in 8 bits have not been tried on a kind of device, else None."""
    if device.type == "cpu" or is_cuda(device):
        return None
    return f"products in {dtype} have not been tried on {device.type!r}"


def reason_by_capability(
    dtype: str, capability: tuple[int, int], needed: tuple[int, int]
) -> str | None:
    """Return why 8-bit products are slower at a CUDA compute capability; None if they are not."""
    if capability >= needed:
        return None
    return (
        f"a GPU of compute capability {_dotted(capability)} has no {dtype} tensor cores "
        f"({_dotted(needed)} and above have)"
    )


def _slower(device: torch.device, dtype: str, needed: tuple[int, int]) -> str | None:
    capability = compute_capability(device)
    if capability is None:
        slow = (
            f"on {device.type!r} rounding to {dtype} takes longer than a product in {dtype} saves"
        )
        return untried(dtype, device) or slow
    if torch.version.hip is not None:
        return f"products in {dtype} have not been tried on ROCm"
    return reason_by_capability(dtype, capability, needed)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
