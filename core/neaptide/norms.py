"""Norms and scales of gradients, with the bits of `torch.nn.utils.clip_grad_norm_`.

The exception is float16: torch's norm above 65,504 is infinite. Here it is float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype


def total_norm(norms: list[torch.Tensor], dtypes: list[torch.dtype]) -> torch.Tensor:
    """Return the L2 norm of `norms` (0-dim), on the device of the first; zero if there is none.

    `dtypes` are those of the gradients: torch adds up one dtype after the other.
    """
    if not norms:
        return torch.zeros(())
    like: Any = [torch.empty(0, dtype=dtype) for dtype in dtypes]
    groups = _group_tensors_by_device_and_dtype([like], with_indices=True).values()
    ordered = [norms[index].to(norms[0].device) for _, indices in groups for index in indices]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(ordered))
    return total


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a dense or sparse gradient, 0-dim."""
    # Entries of a sparse gradient with the same index must be summed first.
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    wider = torch.float32 if dense.dtype == torch.float16 else None
    norm: torch.Tensor = torch.linalg.vector_norm(dense, dtype=wider)
    return norm


def on_device(factor: float | torch.Tensor, device: torch.device) -> Any:
    """Return `factor`; if it is a tensor, first move it to `device`."""
    return factor.to(device) if isinstance(factor, torch.Tensor) else factor


def all_finite(store: Any) -> bool:
    """Return whether each gradient of a store is finite; their norm may overflow even so."""
    for span in filter(store.has_gradient, store.spans()):
        with store.loan(span, "read", of="gradient") as gradient:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not torch.isfinite(values).all():
                return False
    return True
