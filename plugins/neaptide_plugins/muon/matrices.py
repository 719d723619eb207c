"""Describes the matrices in weights, and forms batches of matrices to orthogonalise together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from .polynomials import Step

_TOGETHER = 1 << 24
"""Largest number of elements in a batch. Temporary tensors have several times as many elements."""
_SMALL_ON_CPU = 64
"""If matrices have at most this many rows, a CPU multiplies a batch of them faster than each matrix
separately."""


@attrs.frozen(eq=False)
class Piece:
    """The rows of a weight that form one matrix, and the settings for the update of these rows.

    Attributes:
        weight: a view of the rows; if it has more than two dimensions, the matrix is `flatten(1)`.
        gradient: of the shape of `weight`.
        momentum: of the shape of `weight`; already updated with `gradient`.
        ahead: share of the momentum in the update; the rest is the share of the gradient. Without
            Nesterov momentum, `ahead` is 1.
        lr: factor by which the orthogonalised update is multiplied.
        steps: coefficients of the Newton-Schulz steps.
        dtype: dtype of the Newton-Schulz steps.
    """

    weight: torch.Tensor
    gradient: torch.Tensor
    momentum: torch.Tensor
    ahead: float
    lr: float
    steps: tuple[Step, ...]
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows = self.weight.shape[0]
        return rows, self.weight[0].numel()

    @property
    def is_tall(self) -> bool:
        """True if the matrix has more rows than columns; `lying` then transposes it."""
        rows, columns = self.shape
        return rows > columns

    def lying(self) -> torch.Tensor:
        """Return the matrix to orthogonalise, in `dtype`, and transposed if it is tall."""
        ahead = self.momentum
        if self.ahead != 1:
            ahead = self.gradient.lerp(self.momentum, self.ahead)
        matrix = ahead.flatten(1).to(self.dtype)
        return matrix.mT if self.is_tall else matrix

    def apply(self, update: torch.Tensor) -> None:
        """Subtract `lr` times the orthogonalised update. The update has the shape of `lying()`."""
        turned = update.mT if self.is_tall else update
        self.weight.add_(turned.reshape(self.weight.shape), alpha=-self.lr)


def rows_of(rows: int, proportions: Sequence[int]) -> list[int]:
    """Return the number of rows of each part; ValueError if `proportions` do not divide `rows`."""
    whole = sum(proportions)
    if rows % whole:
        msg = f"{rows} rows do not divide in proportions {list(proportions)}"
        raise ValueError(msg)
    return [rows // whole * part for part in proportions]


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield batches of pieces whose `lying()` shape, device, dtype and steps agree."""
    alike: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        key = (*sorted(piece.shape), piece.weight.device, piece.dtype, piece.steps)
        alike.setdefault(key, []).append(piece)
    for group in alike.values():
        size = _batch_size(group[0])
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _batch_size(piece: Piece) -> int:
    if piece.weight.is_cpu and min(piece.shape) > _SMALL_ON_CPU:
        return 1
    return max(1, _TOGETHER // piece.weight.numel())
