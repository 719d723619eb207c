"""APOLLO's scaling of gradients (Zhu et al., 2024, https://arxiv.org/abs/2412.05270, algorithm 1).

Names are those of the paper: `G` a gradient, `R` its projection, `s` the scaling factors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .projection import tall

if TYPE_CHECKING:
    from collections.abc import Sequence

_TINY = 1e-30
"""Least norm of a channel that divides: a channel of zeros gets an update of zeros, not NaN."""


def normalized(
    grad: torch.Tensor,
    moments: Sequence[torch.Tensor],
    step: int,
    betas: tuple[float, float],
    eps: float,
) -> torch.Tensor:
    """Add a gradient to AdamW's two moments; return the first over the root of the second.

    Both are corrected for their bias, as in AdamW. Step 2 of algorithm 1 if `grad` is `R`.

    Args:
        grad: of the shape and dtype of the moments.
        moments: the first and the second, changed in place.
        step: the number of this update, from 1.
        betas: decays of the moments.
        eps: added to the root.
    """
    (first, second), (beta1, beta2) = moments, betas
    first.lerp_(grad, 1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    root = second.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
    return torch.div(first, root, out=root).div_(1 - beta1**step)


def factors(scaled: torch.Tensor, plain: torch.Tensor, *, by_channel: bool) -> torch.Tensor:
    """Return step 3 of algorithm 1: `s_j = ||R~[:, j]|| / ||R[:, j]||`.

    A channel is a column, or a row of a tall matrix: what the projection leaves whole.

    Args:
        scaled: `R~`, which `normalized` returns.
        plain: `R`.
        by_channel: one factor for each channel, as in APOLLO; or one for all, `||R~|| / ||R||`, as
            in APOLLO-Mini.

    Returns:
        A tensor that multiplies the gradient.
    """
    dim = (1 if tall(plain.shape) else 0) if by_channel else None
    new: torch.Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=by_channel)
    return new.div_(torch.linalg.vector_norm(plain, dim=dim, keepdim=by_channel).clamp_(min=_TINY))


def limited(change: torch.Tensor, norm: torch.Tensor, gamma: float) -> None:
    """Shrink a change whose norm is more than `gamma` times the last; the norm-growth limiter.

    A last norm of 0 limits nothing: it is that of the first update, or of gradients of zeros.

    Args:
        change: changed in place.
        norm: the norm of the last change, without a dimension; becomes that of this change.
        gamma: at least 1.
    """
    found = torch.linalg.vector_norm(change)
    bound = torch.where(norm > 0, norm * gamma, found)
    norm.copy_(torch.minimum(found, bound))
    change.mul_(norm / found.clamp_(min=_TINY))
