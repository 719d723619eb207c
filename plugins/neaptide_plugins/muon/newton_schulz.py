"""Orthogonalises matrices by the quintic Newton-Schulz iteration of Muon, a batch at a time."""

from __future__ import annotations

import torch

A, B, C = 3.4445, -4.7750, 2.0315
"""Coefficients of the step `A x + B x^3 + C x^5` on singular values (Jordan et al. 2024)."""
EPS = 1e-7
"""Norms below this are taken for it, so that a gradient of zero stays zero."""
_OBLONG = 2
"""Columns a row from which the iteration over Gram matrices takes fewer operations."""
_STABLE = 5
"""Steps up to which it is stable in float32: an eigenvalue of 0 is rounded to about -1e-7, and a
step multiplies that by up to 12; at -1 it would run away."""


def orthogonalised(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `[N, R, C]` with its singular values moved to about 1, its singular vectors kept.

    With 5 steps, singular values of 0.005 to 1 of a matrix's Frobenius norm end between 0.68 and
    1.16; smaller ones grow by about 485, to no more than 1.21. A matrix with a NaN or an inf
    becomes NaN, without harm to its neighbours.

    Args:
        x: floating, with `R <= C` for the fewest operations; computed in its dtype.
        steps: iterations.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    rows, columns = x.shape[-2:]
    if x.dtype == torch.float32 and steps <= _STABLE and columns >= _OBLONG * rows:
        return torch.bmm(_product(torch.bmm(x, x.mT), steps), x)
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        cubic = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.baddbmm(x, cubic, x, beta=A)
    return x


def _product(gram: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the matrices `[N, R, R]` that `steps` steps multiply `x` by, from `x @ x.mT`.

    A step multiplies `x` by `A + B gram + C gram^2`, and `gram` by it from both sides: `x` itself
    is not needed on the way.
    """
    product = factor = _factor(gram)
    for _ in range(steps - 1):
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _factor(gram)
        product = torch.bmm(factor, product)
    return product


def _factor(gram: torch.Tensor) -> torch.Tensor:
    factor = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
    factor.diagonal(dim1=-2, dim2=-1).add_(A)
    return factor
