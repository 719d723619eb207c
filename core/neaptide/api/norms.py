"""Norms and scales of gradients, computed as in `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

from typing import Any

import torch


def total_norm(norms: list[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of `norms` (0-dim tensors), in the widest dtype of `norms`.

    The result is on the device of the first norm. If `norms` is empty, it is a float32 zero.
    """
    if not norms:
        return torch.zeros(())
    if len({norm.device for norm in norms}) > 1:
        norms = [norm.to(norms[0].device) for norm in norms]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a dense or sparse gradient: 0-dim, at least float32."""
    # Entries of a sparse gradient with the same index must be summed first.
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    norm: torch.Tensor = torch.linalg.vector_norm(dense, dtype=norm_dtype(dense))
    return norm


def norm_dtype(gradient: torch.Tensor) -> torch.dtype:
    """Return the dtype in which the squares of `gradient` are summed: at least float32."""
    # The square of 256 overflows in fp16.
    return torch.promote_types(gradient.dtype, torch.float32)


def on_device(factor: float | torch.Tensor, device: torch.device) -> Any:
    """Return `factor`; if it is a tensor, first move it to `device`."""
    return factor.to(device) if isinstance(factor, torch.Tensor) else factor
