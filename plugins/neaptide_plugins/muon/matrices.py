"""The matrices that weights are made of, and which of them are orthogonalised together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

_TOGETHER = 1 << 24
"""Elements of a batch: a few times as many numbers are allocated meanwhile."""
_SMALL_ON_CPU = 64
"""Rows up to which a CPU multiplies a batch faster than one matrix after the other."""


@attrs.frozen(eq=False)
class Piece:
    """Some rows of a weight that are one matrix, and how it is to be updated.

    Attributes:
        weight: the rows, a view; with more than two dimensions the matrix is `flatten(1)`.
        gradient: of its shape.
        momentum: of its shape, this gradient already in it.
        ahead: share of the momentum in the update, the rest is the gradient's; 1 is no Nesterov.
        lr: what the orthogonalised update is multiplied by.
        steps: Newton-Schulz steps.
        dtype: in which they are computed.
    """

    weight: torch.Tensor
    gradient: torch.Tensor
    momentum: torch.Tensor
    ahead: float
    lr: float
    steps: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows = self.weight.shape[0]
        return rows, self.weight[0].numel()

    @property
    def is_tall(self) -> bool:
        """Whether the matrix is turned, so that it has no more rows than columns."""
        rows, columns = self.shape
        return rows > columns

    def lying(self) -> torch.Tensor:
        """Return what is to be orthogonalised, turned if it is tall, in `dtype`."""
        ahead = self.momentum
        if self.ahead != 1:
            ahead = self.gradient.lerp(self.momentum, self.ahead)
        matrix = ahead.flatten(1).to(self.dtype)
        return matrix.mT if self.is_tall else matrix

    def apply(self, update: torch.Tensor) -> None:
        """Subtract the orthogonalised update, lying as it was, times the rate."""
        turned = update.mT if self.is_tall else update
        self.weight.add_(turned.reshape(self.weight.shape), alpha=-self.lr)


def rows_of(rows: int, proportions: Sequence[int]) -> list[int]:
    """Return how many of `rows` each part has; ValueError where they do not divide."""
    whole = sum(proportions)
    if rows % whole:
        msg = f"{rows} rows do not divide in proportions {list(proportions)}"
        raise ValueError(msg)
    return [rows // whole * part for part in proportions]


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Put together what one iteration can orthogonalise: one shape, lying, on one device."""
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
