"""Clipping and norms of a block's gradients where they lie, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm."""


@torch.no_grad()
def clip_per_tensor(gradients: Iterable[torch.Tensor], max_norm: float) -> None:
    """Scale each gradient to at most `max_norm`, in place: `clip_grad_norm_` of each one alone.

    A gradient whose norm is not finite becomes zero or NaN, as it does there.
    """
    for gradient in gradients:
        scale([gradient], coefficient(get_total_norm([gradient]), max_norm))


def coefficient(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Return the factor, at most 1, that brings `norm` to `max_norm`, as `clip_grad_norm_` has it.

    Args:
        norm: 0-dim; the factor has its dtype and device. For clipping by a lagged norm it is that
            of an earlier step (`latest_finite`).
        max_norm: not negative.
    """
    return (max_norm / (norm + _EPSILON)).clamp(max=1.0)


@torch.no_grad()
def scale(gradients: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply gradients by a 0-dim factor, in place.

    The factor lies on their device or on the CPU, and is rounded to the dtype of each, as in
    every product of a tensor and a 0-dim one.
    """
    if gradients:
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def add_squares(total: torch.Tensor, gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Add the gradients' squared norms to `total`, in place, and return whether they are finite.

    The norm of each is taken in float32 or wider and squared in `total`'s dtype: in float64 no
    finite norm overflows.

    Args:
        total: 0-dim, float32 or float64, on the gradients' device.
        gradients: of any floating or complex dtypes.

    Returns:
        0-dim bool on that device: whether each of their norms is finite, hence every element. Of
        no gradients it is true.
    """
    norms = [norm_of(gradient).to(total.dtype) for gradient in gradients]
    if not norms:
        return torch.ones_like(total, dtype=torch.bool)
    stacked = torch.stack(norms)
    total.add_(stacked.square().sum())
    return stacked.isfinite().all()


@torch.no_grad()
def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of a tensor, 0-dim, computed and kept in float32 or wider."""
    real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    wide = torch.promote_types(real.dtype, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(real, dtype=wide)
    return norm


def latest_finite(known: torch.Tensor | None, total: torch.Tensor) -> torch.Tensor:
    """Return the norm for the next step to clip by: of this step's squares, or that known before.

    Args:
        known: 0-dim, what this returned a step ago, if there was one.
        total: 0-dim, the sum of squares of a whole step (`add_squares`).

    Returns:
        0-dim, of `total`'s dtype and device. If the very first is not finite it is infinite, by
        which nothing gets through: `coefficient` is 0.
    """
    norm = total.sqrt()
    before = torch.full_like(norm, torch.inf) if known is None else known
    return torch.where(norm.isfinite(), norm, before)
