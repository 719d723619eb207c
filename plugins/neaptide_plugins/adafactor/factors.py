"""The second moment of Adafactor as a row and a column."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neaptide_toolkit.optim.means import mean_square, working_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def factored_dims(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the two largest dimensions of a shape, in order, or None.

    None: a mean over the one and a mean over the other are together not smaller than the shape.
    Of dimensions of equal size, the last ones count.
    """
    if len(shape) < 2:  # noqa: PLR2004 - a row and a column
        return None
    rows, columns = sorted(sorted(range(len(shape)), key=lambda dim: (shape[dim], dim))[-2:])
    size = math.prod(shape)
    if not size or size // shape[rows] + size // shape[columns] >= size:
        return None
    return rows, columns


def scaled(
    grad: torch.Tensor, moments: Sequence[torch.Tensor], share: float, eps: float
) -> torch.Tensor:
    """Add a gradient to a second moment; return the gradient over the root of the moment.

    Algorithms 4 and 5 of Shazeer & Stern (2018), with means where the paper has sums: their factors
    cancel, and means do not overflow.

    Args:
        grad: gradient of any floating dtype and shape.
        moments: in the working dtype, changed in place: a row of means over the second of
            `factored_dims` and a column of means over the first; or one tensor of the shape of
            `grad`.
        share: weight of the gradient's squares in the new moment, in (0, 1].
        eps: added to the squares.

    Returns:
        A new tensor of the working dtype and the shape of `grad`.
    """
    change = grad.to(working_dtype(grad), copy=True)
    dims = factored_dims(grad.shape)
    if dims is None:
        (variance,) = moments
        variance.lerp_(change.square().add_(eps), share)
        return change.mul_(variance.rsqrt())
    row, column = moments
    rows, columns = dims
    row.lerp_(mean_square(change, [columns]).add_(eps), share)
    column.lerp_(mean_square(change, [rows]).add_(eps), share)
    change.mul_((row / row.mean(dim=rows, keepdim=True)).rsqrt_())
    return change.mul_(column.rsqrt())
