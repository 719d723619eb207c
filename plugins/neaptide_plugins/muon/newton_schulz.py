"""Orthogonalises matrices by the quintic Newton-Schulz iteration of Muon, a batch at a time."""

from __future__ import annotations

import torch

A, B, C = 3.4445, -4.7750, 2.0315
"""Coefficients of the step `A x + B x^3 + C x^5` on singular values (Jordan et al. 2024)."""
EPS = 1e-7
"""Norms below this are taken for it, so that a gradient of zero stays zero."""


def orthogonalised(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `[N, R, C]` with its singular values moved to about 1, its singular vectors kept.

    With 5 steps, singular values of 0.005 to 1 of a matrix's Frobenius norm end between 0.68 and
    1.16; smaller ones grow by about 485. A matrix with a NaN or an inf becomes NaN, without
    harm to its neighbours.

    Args:
        x: floating, with `R <= C` for the fewest operations; computed in its dtype.
        steps: iterations.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        cubic = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.baddbmm(x, cubic, x, beta=A)
    return x
