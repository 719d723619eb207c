"""Clips a block's gradients and computes their norms, without a wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EPSILON = 1e-6
"""The number that `torch.nn.utils.clip_grad_norm_` adds to the norm before it divides."""


@torch.no_grad()
def clip_per_tensor(gradients: Iterable[torch.Tensor], max_norm: float) -> None:
    """Scale each gradient, in place, to a norm of at most `max_norm`.

    The result is the same as if `clip_grad_norm_` was called for each gradient alone. A gradient
    whose norm is not finite becomes zero or NaN.
    """
    for gradient in gradients:
        scale([gradient], coefficient(get_total_norm([gradient]), max_norm))


def coefficient(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Return the factor by which `clip_grad_norm_` would multiply gradients of norm `norm`.

    Args:
        norm: 0-dim; the factor has the dtype and device of the norm. For lagged clipping pass the
            norm of an earlier step (`latest_finite`).
        max_norm: not negative. If `norm` is smaller, the factor is 1.
    """
    return (max_norm / (norm + _EPSILON)).clamp(max=1.0)


@torch.no_grad()
def scale(gradients: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply gradients by a 0-dim factor, in place.

    The factor is on the gradients' device or on the CPU. For each gradient the factor is rounded
    to the gradient's dtype, as torch does for 0-dim factors.
    """
    if gradients:
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def add_squares(total: torch.Tensor, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Add the gradients' squared norms to `total`, in place. Return the norm of them all.

    Each norm is computed in float32 or wider, and added in the dtype of `total`. If `total` is
    float64, the square of a finite float32 norm does not overflow.

    Args:
        total: 0-dim, float32 or float64, on the gradients' device.
        gradients: tensors of any floating or complex dtype.

    Returns:
        0-dim, with the dtype and device of `total`. If it is finite, every element is finite, too.
    """
    if not gradients:
        return torch.zeros_like(total)
    norms = torch.stack(norms_of(gradients)).to(total.dtype)
    norm: torch.Tensor = torch.linalg.vector_norm(norms)
    total.addcmul_(norm, norm)
    return norm


def norms_of(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the 2-norms of tensors, 0-dim, in one dtype: float32 or the widest of theirs."""
    real = [torch.view_as_real(one) if one.is_complex() else one for one in gradients]
    wide = torch.float32
    for dtype in {one.dtype for one in real}:
        wide = torch.promote_types(dtype, wide)
    return list(torch._foreach_norm(real, dtype=wide))


def latest_finite(known: torch.Tensor | None, total: torch.Tensor) -> torch.Tensor:
    """Return the norm that the next step uses for clipping.

    This is the norm of the current step if that norm is finite, else `known`.

    Args:
        known: 0-dim, the result of the previous step, or None.
        total: 0-dim, the sum of squares of a whole step (`add_squares`).

    Returns:
        0-dim, with the dtype and device of `total`. If no norm was finite so far, the result is
        infinite; for this norm `coefficient` returns 0.
    """
    norm = total.sqrt()
    before = torch.full_like(norm, torch.inf) if known is None else known
    return torch.where(norm.isfinite(), norm, before)
