"""Finds the matrices in weights, and forms batches of matrices to orthogonalise together."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOGETHER = 1 << 24
"""Largest number of elements in a batch. Temporary tensors have several times as many elements."""
_SMALL_ON_CPU = {torch.float32: 64, torch.bfloat16: 256}
"""By the dtype of the steps: if matrices have at most this many rows, a CPU multiplies a batch of
them faster than each matrix separately."""
_NARROW_FROM = 96
"""If matrices have at least this many rows, a CPU with instructions for bfloat16 multiplies them
faster in bfloat16."""


@attrs.frozen
class Cut:
    """Where a matrix lies in the weights of a group.

    Attributes:
        weight: the number of its weight.
        place: its place in a stack; None: the weight is no stack.
        first: its first row in the weight, or in this part of the stack.
        rows: number of its rows.
        columns: number of its columns.
        is_whole: whether it has all rows.
    """

    weight: int
    place: int | None
    first: int
    rows: int
    columns: int
    is_whole: bool

    @property
    def is_tall(self) -> bool:
        """True if the matrix has more rows than columns; `lying` then transposes it."""
        return self.rows > self.columns

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the view of the matrix, from one tensor of each weight; it may have more dims."""
        tensor = tensors[self.weight]
        if self.place is not None:
            tensor = tensor[self.place]
        return tensor if self.is_whole else tensor.narrow(0, self.first, self.rows)

    def lying(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a view or copy `[R, C]` of what `of` returns, in a dtype, with `R <= C`."""
        matrix = tensor.flatten(1).to(dtype)
        return matrix.mT if self.is_tall else matrix

    def turned(self, matrix: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `like`, which `of` returned, from one as of `lying`."""
        return (matrix.mT if self.is_tall else matrix).reshape(like.shape)

    def factor(self, scale: str) -> float:
        """Return the factor of the update; see `Muon`."""
        if scale == "original":
            return math.sqrt(max(1, self.rows / self.columns))
        return 0.2 * math.sqrt(max(self.rows, self.columns))


@attrs.frozen
class Alike:
    """Matrices that are orthogonalised together: all are `[R, C]` or `[C, R]`.

    Attributes:
        cuts: where they are.
        factor: that of their updates.
        dtype: dtype of the Newton-Schulz steps.
    """

    cuts: tuple[Cut, ...]
    factor: float
    dtype: torch.dtype


def rows_of(rows: int, proportions: Sequence[int]) -> list[int]:
    """Return the number of rows of each part; ValueError if `proportions` do not divide `rows`."""
    whole = sum(proportions)
    if rows % whole:
        msg = f"{rows} rows do not divide in proportions {list(proportions)}"
        raise ValueError(msg)
    return [rows // whole * part for part in proportions]


@lru_cache(maxsize=1024)
def batches(
    shapes: tuple[torch.Size, ...],
    *,
    split: tuple[int, ...] = (1,),
    stacked: bool = False,
    scale: str = "match_rms_adamw",
    dtype: torch.dtype | None = None,
    is_cpu: bool = True,
) -> tuple[Alike, ...]:
    """Return the batches of the matrices in weights.

    Args:
        shapes: those of the weights.
        split: how to divide the rows of a weight, or of a part of a stack.
        stacked: whether each weight is a stack of matrices.
        scale: name of the factor of an update.
        dtype: dtype of the Newton-Schulz steps; None: that which suits the matrix and device.
        is_cpu: whether the weights are on a CPU.
    """
    alike: dict[tuple[object, ...], list[Cut]] = {}
    for weight, shape in enumerate(shapes):
        for cut in _cuts(weight, shape, split, stacked=stacked):
            key = (*sorted((cut.rows, cut.columns)), cut.factor(scale))
            alike.setdefault(key, []).append(cut)
    made = []
    for group in alike.values():
        first = group[0]
        rows = min(first.rows, first.columns)
        chosen = dtype or _suitable(rows, is_cpu=is_cpu)
        size = max(1, _TOGETHER // (first.rows * first.columns))
        if is_cpu and rows > _SMALL_ON_CPU[chosen]:
            size = 1
        parts = (group[start : start + size] for start in range(0, len(group), size))
        made += [Alike(tuple(part), first.factor(scale), chosen) for part in parts]
    return tuple(made)


def _cuts(
    weight: int, shape: torch.Size, split: tuple[int, ...], *, stacked: bool
) -> Iterator[Cut]:
    rows, *others = shape[1:] if stacked else shape
    for place in range(shape[0]) if stacked else (None,):
        first = 0
        for part in rows_of(rows, split):
            yield Cut(weight, place, first, part, math.prod(others), part == rows)
            first += part


def _suitable(rows: int, *, is_cpu: bool) -> torch.dtype:
    """Return the dtype of the steps for matrices of `rows`, the shorter side."""
    if is_cpu and (rows < _NARROW_FROM or not multiplies_bfloat16()):
        return torch.float32
    return torch.bfloat16


@lru_cache(maxsize=1)
def multiplies_bfloat16() -> bool:
    """Return whether the CPU has instructions that multiply bfloat16; False where torch is old."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))
