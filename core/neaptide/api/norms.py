"""Norms and scales of gradients, in the arithmetic of `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

from typing import Any

import torch


def total_norm(norms: list[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of `norms` (0-dim tensors) in the widest dtype among them.

    On the first one's device; a float32 zero where there are none.
    """
    if not norms:
        return torch.zeros(())
    if len({norm.device for norm in norms}) > 1:
        norms = [norm.to(norms[0].device) for norm in norms]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of one gradient, sparse ones included: 0-dim, float32 at least."""
    # The entries of a row met twice add up first.
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    norm: torch.Tensor = torch.linalg.vector_norm(dense, dtype=norm_dtype(dense))
    return norm


def norm_dtype(gradient: torch.Tensor) -> torch.dtype:
    """Return the dtype to sum the squares of `gradient` in: float32 at least."""
    # Squares of fp16 gradients overflow from 256 on: fp16 and bf16 are summed in fp32.
    return torch.promote_types(gradient.dtype, torch.float32)


def on_device(factor: float | torch.Tensor, device: torch.device) -> Any:
    """Return a factor where it can be multiplied with tensors on `device`."""
    return factor.to(device) if isinstance(factor, torch.Tensor) else factor
