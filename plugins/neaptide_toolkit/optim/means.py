"""Mean squares of tensors, for second moments that are smaller than their weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection


def working_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of state and update: float64 for a float64 tensor, else float32."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def mean_square(tensor: torch.Tensor, dims: Collection[int] | None = None) -> torch.Tensor:
    """Return the mean of the squares, in the working dtype, without a copy of the tensor.

    Args:
        tensor: any floating dtype and shape, not empty.
        dims: the dimensions to average, which are then 1; None averages all, and the result has no
            dimension.
    """
    kept = dims is not None
    size = math.prod(tensor.shape[dim] for dim in (range(tensor.dim()) if dims is None else dims))
    norm: torch.Tensor = torch.linalg.vector_norm(
        tensor, dim=tuple(dims or ()) or None, keepdim=kept, dtype=working_dtype(tensor)
    )
    return norm.square_().div_(size)
