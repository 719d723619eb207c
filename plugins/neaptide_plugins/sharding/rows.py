"""The rows of a tensor that one process has, as torch divides dim 0 of a sharded parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.ranks.group import Ranks


@attrs.frozen
class RowShare:
    """Which rows of a tensor of this shape process `rank` of `size` has.

    The first processes have `chunk` rows each, as `torch.chunk` divides; the last may have fewer,
    or none.
    """

    shape: tuple[int, ...]
    rank: int
    size: int

    @property
    def chunk(self) -> int:
        """RowShare of the first process."""
        return -(-self.shape[0] // self.size)

    def range_of(self, rank: int) -> tuple[int, int]:
        """Return the first row of a process, and how many it has."""
        first = min(rank * self.chunk, self.shape[0])
        return first, min(self.chunk, self.shape[0] - first)

    def offset(self, itemsize: int) -> int:
        """Return how many bytes of the whole tensor are before this process's rows."""
        return self.range_of(self.rank)[0] * torch.Size(self.shape[1:]).numel() * itemsize

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of this process's rows."""
        return self.range_of(self.rank)[1], *self.shape[1:]

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a view of this process's rows."""
        return whole.narrow(0, *self.range_of(self.rank))

    def padded(self, own: torch.Tensor) -> torch.Tensor:
        """Return rows with zeros after them, so that every process has as many."""
        if own.shape[0] == self.chunk and own.is_contiguous():
            return own
        filled = own.new_zeros(self.chunk, *self.shape[1:])
        filled[: own.shape[0]] = own
        return filled


def gathered(
    own: torch.Tensor, rows: RowShare, takers: Sequence[int], ranks: Ranks
) -> torch.Tensor | None:
    """Return the whole tensor, in new memory, if this process is one of `takers`.

    All processes must call this alike. If only one takes it, the others send, and hold nothing.
    """
    with torch.no_grad():
        takes = len(takers) > 1 or ranks.rank in takers
        parts = whole = None
        if takes:
            whole = own.new_empty(rows.chunk * rows.size, *rows.shape[1:])
            parts = list(torch.split(whole, max(1, rows.chunk)))
        if torch.Size(rows.shape).numel():
            only = takers[0] if len(takers) == 1 else None
            ranks.gather(rows.padded(own.detach()), parts, only)
        return None if whole is None else whole.narrow(0, 0, rows.shape[0])


def stand_in(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor without memory of its own; NaN, so that who computes with it finds out."""
    value = math.nan if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full((), value, dtype=dtype, device="cpu").expand(shape)


def is_part(value: Any, rows: RowShare) -> bool:
    """Return whether an entry of an optimizer's state has a value for each value of the rows."""
    return isinstance(value, torch.Tensor) and tuple(value.shape) == rows.own_shape


def part_of_entry(value: Any, rows: RowShare) -> Any:
    """Return the rows of an entry of the state of a whole parameter; others as they are."""
    if isinstance(value, torch.Tensor) and tuple(value.shape) == rows.shape:
        return rows.own(value).clone()
    return value
