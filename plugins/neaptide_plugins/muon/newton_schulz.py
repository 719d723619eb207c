"""Orthogonalise batches of matrices by the quintic Newton-Schulz iteration of Muon."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .polynomials import Step

EPS = 1e-7
"""A smaller norm is replaced by this number, so that a matrix of zeros is not divided by zero."""
_OBLONG = 2
"""From this ratio of columns to rows on, the iteration on Gram matrices needs fewer operations."""
_STABLE = 0.1
"""The iteration on Gram matrices is stable in float32 if the steps enlarge an eigenvalue of -1e-7
to at most this. Rounding turns an eigenvalue of 0 into about -1e-7. Each step multiplies such an
eigenvalue by up to `a * a`. If an eigenvalue reaches -1, the iteration diverges."""


def orthogonalised(x: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Return matrices `[N, R, C]` with the singular vectors of `x` and singular values of about 1.

    Each matrix is first divided by its Frobenius norm. A matrix with a NaN or an inf becomes NaN;
    this does not affect the other matrices.

    Args:
        x: floating `[N, R, C]`. The arithmetic uses the dtype of `x`. With `R <= C` the number of
            operations is smallest.
        steps: `(a, b, c)` of each iteration, which replaces a singular value s by
            `a s + b s^3 + c s^5`; see `coefficients`.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    rows, columns = x.shape[-2:]
    if x.dtype == torch.float32 and columns >= _OBLONG * rows and _is_stable(steps):
        return torch.bmm(_product(torch.bmm(x, x.mT), steps), x)
    for a, b, c in steps:
        gram = torch.bmm(x, x.mT)
        cubic = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, cubic, x, beta=a)
    return x


def _is_stable(steps: Sequence[Step]) -> bool:
    return 1e-7 * math.prod(a * a for a, _, _ in steps) <= _STABLE


def _product(gram: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Return the matrices `[N, R, R]` by which the steps multiply `x`; `gram` is `x @ x.mT`.

    A step multiplies `x` by the factor `a + b gram + c gram^2`. So it multiplies `gram` by this
    factor from both sides, and all factors can be computed without `x`.
    """
    product = factor = _factor(gram, steps[0])
    for step in steps[1:]:
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _factor(gram, step)
        product = torch.bmm(factor, product)
    return product


def _factor(gram: torch.Tensor, step: Step) -> torch.Tensor:
    a, b, c = step
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor
