"""Dynamic mode decomposition by the method of snapshots. Only a Gram matrix is needed.

A step is the difference `d_i = w_{i+1} - w_i` between two snapshots of the weights. The steps are
modelled as `d_{i+1} = A d_i`, where A has a low rank. The input is the Gram matrix of the steps
(their inner products). The forecast is a linear combination of the snapshots `w_i`.
"""

from __future__ import annotations

import math

import torch

NEGLIGIBLE = 1e-10
"""An eigenvalue is noise if it is below this share of the Gram matrix's largest eigenvalue."""
WORST_CONDITION = 1e10
"""If the condition number of the eigenvectors is higher, the modes count as not distinct."""


def forecast(gram: torch.Tensor, *, rank: int, ahead: float, damping: float) -> list[float] | None:
    """Return coefficients of the m + 1 snapshots.

    The linear combination of the snapshots with these coefficients is the predicted change of the
    weights in `ahead` steps.

    The coefficients sum to zero. Return None if all steps are zero, if a value is not finite, or
    if the modes are not distinct.

    Args:
        gram: float64 `[m, m]` inner products of the m steps, m >= 2.
        rank: largest number of modes.
        ahead: number of steps to predict; it need not be an integer.
        damping: largest modulus of an eigenvalue; larger eigenvalues are scaled down to it.
    """
    if not gram.isfinite().all():
        return None
    known, shifted = gram[:-1, :-1], gram[:-1, 1:]
    squares, basis = torch.linalg.eigh(known)
    kept = squares > NEGLIGIBLE * squares[-1]
    if squares[-1] <= 0.0 or not kept.any():
        return None
    squares, basis = squares[kept][-rank:], basis[:, kept][:, -rank:]
    # A is projected to the orthonormal basis U = X V / sigma. The columns of X are all steps except
    # the last step. The columns of X' are all steps except the first step.
    scaled = basis / squares.sqrt()
    reduced = scaled.T @ shifted @ scaled
    last = scaled.T @ gram[:-1, -1]
    advanced = _series(reduced, last, ahead, damping)
    if advanced is None:
        return None
    steps = scaled @ advanced  # the coefficients of X'
    later = torch.zeros(len(gram) + 1, dtype=torch.float64)
    later[2:] += steps
    later[1:-1] -= steps
    return later.tolist() if later.isfinite().all() else None


def _series(
    matrix: torch.Tensor, vector: torch.Tensor, ahead: float, damping: float
) -> torch.Tensor | None:
    """Return `(1 + A + ... + A**(ahead - 1)) v`. Eigenvalues above `damping` are scaled down."""
    values, vectors = torch.linalg.eig(matrix)
    if not torch.linalg.cond(vectors) < WORST_CONDITION:
        return None
    modulus = values.abs()
    values = torch.where(modulus > damping, values * (damping / modulus), values)
    sums = torch.stack([_geometric(complex(value), ahead) for value in values.tolist()])
    found: torch.Tensor = vectors @ (
        sums * torch.linalg.solve(vectors, vector.to(torch.complex128))
    )
    return found.real


def _geometric(value: complex, ahead: float) -> torch.Tensor:
    """Return `(1 - value**ahead) / (1 - value)`, or its limit `ahead` for a value near 1."""
    gap = 1.0 - value
    total = complex(ahead) if abs(gap) * max(1.0, ahead) < math.sqrt(_EPSILON) else None
    if total is None:
        total = (1.0 - value**ahead) / gap
    return torch.tensor(total, dtype=torch.complex128)


_EPSILON = 2.0**-52
