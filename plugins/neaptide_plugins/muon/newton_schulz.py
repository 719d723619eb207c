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


def orthogonalised(x: torch.Tensor, steps: Sequence[Step], norm: str = "frobenius") -> torch.Tensor:
    """Return matrices `[N, R, C]` with the singular vectors of `x` and singular values of about 1.

    Each matrix is first divided by a norm that no singular value exceeds. A matrix with a NaN or an
    inf becomes NaN; this does not affect the other matrices.

    Args:
        x: floating `[N, R, C]`. The arithmetic uses the dtype of `x`. With `R <= C` the number of
            operations is smallest.
        steps: `(a, b, c)` of each iteration, which replaces a singular value s by
            `a s + b s^3 + c s^5`; see `coefficients`.
        norm: of the singular values s: `"frobenius"`, the square root of the sum of `s^2`, or
            `"schatten"`, the eighth root of the sum of `s^8`, which is nearer to the largest.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    rows, columns = x.shape[-2:]
    gram = torch.bmm(x, x.mT)
    by_gram = x.dtype == torch.float32 and columns >= _OBLONG * rows and _is_stable(steps)
    first, *others = steps
    if norm == "schatten":
        cubic, x, gram = _first_of_schatten(x, gram, first)
    else:
        cubic = _cubic(gram, first)
    if by_gram:
        return torch.bmm(_product(gram, cubic, steps), x)
    x = torch.baddbmm(x, cubic, x, beta=first[0])
    for step in others:
        gram = torch.bmm(x, x.mT)
        cubic = _cubic(gram, step)
        x = torch.baddbmm(x, cubic, x, beta=step[0])
    return x


def _cubic(gram: torch.Tensor, step: Step) -> torch.Tensor:
    """Return `b gram + c gram^2`."""
    _, b, c = step
    return torch.baddbmm(gram, gram, gram, beta=b, alpha=c)


def _first_of_schatten(
    x: torch.Tensor, gram: torch.Tensor, step: Step
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `_cubic` of the first step, `x` and `gram`, all for `x` divided by its norm.

    The norm is that of Schatten with exponent 8. The square of `gram`, which the step needs anyway,
    has the eighth powers: its Frobenius norm is the fourth power of that of `x`.

    Args:
        x: divided by its Frobenius norm; it is changed.
        gram: `x @ x.mT`; it is changed.
        step: the first step.
    """
    _, b, c = step
    square = torch.bmm(gram, gram)
    fourth = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True, dtype=_wide(x.dtype))
    # The least of a matrix whose Frobenius norm is 1; that of a smaller one is less than 1.
    fourth.clamp_(min=x.shape[-2] ** -1.5)
    gram.mul_(fourth.rsqrt())
    cubic = square.mul_(c / fourth).add_(gram, alpha=b)
    return cubic, x.mul_(fourth.pow_(-0.25)), gram


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _is_stable(steps: Sequence[Step]) -> bool:
    return 1e-7 * math.prod(a * a for a, _, _ in steps) <= _STABLE


def _product(gram: torch.Tensor, cubic: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Return the matrices `[N, R, R]` by which the steps multiply `x`.

    A step multiplies `x` by the factor `a + b gram + c gram^2`. So it multiplies `gram` by this
    factor from both sides, and all factors can be computed without `x`.

    Args:
        gram: `x @ x.mT`.
        cubic: `_cubic` of the first step.
        steps: all steps.
    """
    product = factor = _factor(cubic, steps[0])
    for step in steps[1:]:
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _factor(_cubic(gram, step), step)
        product = torch.bmm(factor, product)
    return product


def _factor(cubic: torch.Tensor, step: Step) -> torch.Tensor:
    cubic.diagonal(dim1=-2, dim2=-1).add_(step[0])
    return cubic
