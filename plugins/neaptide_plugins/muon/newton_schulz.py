"""Orthogonalise batches of matrices by the quintic Newton-Schulz iteration of Muon."""

from __future__ import annotations

import torch

A, B, C = 3.4445, -4.7750, 2.0315
"""Coefficients of the step `A x + B x^3 + C x^5` on singular values (Jordan et al. 2024)."""
EPS = 1e-7
"""A smaller norm is replaced by this number, so that a matrix of zeros is not divided by zero."""
_OBLONG = 2
"""From this ratio of columns to rows on, the iteration on Gram matrices needs fewer operations."""
_STABLE = 5
"""Up to this many steps, the iteration on Gram matrices is stable in float32. Rounding turns an
eigenvalue of 0 into about -1e-7. Each step multiplies such an eigenvalue by up to 12. If an
eigenvalue reaches -1, the iteration diverges."""


def orthogonalised(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return matrices `[N, R, C]` with the singular vectors of `x` and singular values of about 1.

    Each matrix is first divided by its Frobenius norm. Five steps then move a singular value of at
    least 0.005 into [0.68, 1.16]. Five steps multiply a smaller singular value by 230 (near 0.005)
    to 485 (near 0); the result is at most 1.21. A matrix with a NaN or an inf becomes NaN; this
    does not affect the other matrices.

    Args:
        x: floating `[N, R, C]`. The arithmetic uses the dtype of `x`. With `R <= C` the number of
            operations is smallest.
        steps: number of iterations.
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
    """Return the matrices `[N, R, R]` by which `steps` steps multiply `x`; `gram` is `x @ x.mT`.

    A step multiplies `x` by the factor `A + B gram + C gram^2`. So it multiplies `gram` by this
    factor from both sides, and all factors can be computed without `x`.
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
