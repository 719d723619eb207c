"""Norms and scales of gradients, in the arithmetic of `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

from typing import Any

import torch


def total_norm(norms: list[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of `norms` (0-dim tensors) in the widest dtype among them.

    The result is on the device of the first norm; without norms it is a float32 zero.
    """
    if not norms:
        return torch.zeros(())
    if len({norm.device for norm in norms}) > 1:
        norms = [norm.to(norms[0].device) for norm in norms]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a dense or sparse gradient: 0-dim, float32 at least."""
    # Duplicate entries of a sparse gradient add up first.
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    norm: torch.Tensor = torch.linalg.vector_norm(dense, dtype=norm_dtype(dense))
    return norm


def norm_dtype(gradient: torch.Tensor) -> torch.dtype:
    """Return the dtype in which to sum the squares of `gradient`: float32 at least."""
    # In fp16 the square of 256 overflows.
    return torch.promote_types(gradient.dtype, torch.float32)


def on_device(factor: float | torch.Tensor, device: torch.device) -> Any:
    """Return `factor`, moved to `device` if it is a tensor."""
    return factor.to(device) if isinstance(factor, torch.Tensor) else factor
