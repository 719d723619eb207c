"""Orthogonalises matrices by the quintic Newton-Schulz iteration of Muon, a batch at a time."""

from __future__ import annotations

import torch

A, B, C = 3.4445, -4.7750, 2.0315
"""Coefficients of the step `A x + B x^3 + C x^5` on singular values (Jordan et al. 2024)."""
EPS = 1e-7
"""Smaller norms are replaced by this one, so that a gradient of zero stays zero."""
_OBLONG = 2
"""From this ratio of columns to rows on, the iteration on Gram matrices needs fewer operations."""
_STABLE = 5
"""Up to this many steps, the iteration on Gram matrices is stable in float32. Rounding turns an
eigenvalue of 0 into about -1e-7, each step multiplies it by up to 12, and at -1 it diverges."""


def orthogonalised(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return matrices `[N, R, C]` with the singular vectors of `x` and singular values of about 1.

    With 5 steps, singular values of 0.005 to 1 of a matrix's Frobenius norm end between 0.68 and
    1.16. Smaller ones are multiplied by about 485 and end at 1.21 at most. A matrix with a NaN or
    an inf becomes NaN; the other matrices are not affected.

    Args:
        x: floating `[N, R, C]`, computed in its dtype; `R <= C` needs the fewest operations.
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

    A step multiplies `x` by the factor `A + B gram + C gram^2`, and `gram` by the same factor from
    both sides. So the steps do not need `x` itself.
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
