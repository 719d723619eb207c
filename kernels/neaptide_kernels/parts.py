"""Tensors one by one and in parts, so that temporary tensors stay small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PIECE = 1 << 16
"""Elements processed at a time on a CPU, so that they fit in its caches."""
Parts = Callable[["torch.Tensor", int, int], Iterator[slice]]
"""Called as `parts_of` is."""
Rows = Callable[
    [Sequence[Sequence["torch.Tensor"]]], Iterator[tuple[int, tuple["torch.Tensor", ...]]]
]
"""Called as `rows_of` is."""

_other: ContextVar[tuple[Parts, Rows] | None] = ContextVar("parts", default=None)


def each_row(
    lists: Sequence[Sequence[torch.Tensor]],
) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """Yield each place of lists of the same length, with the tensors that they have there."""
    return enumerate(zip(*lists, strict=True))


@contextmanager
def parts_by(parts: Parts, rows: Rows = each_row) -> Iterator[None]:
    """Within this context, `parts` stands for `parts_of`, and `rows` for `rows_of`."""
    token = _other.set((parts, rows))
    try:
        yield
    finally:
        _other.reset(token)


def rows_of(
    lists: Sequence[Sequence[torch.Tensor]],
) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """Return `each_row(lists)`, or what stands for it."""
    _, rows = _other.get() or (None, each_row)
    return rows(lists)


def parts_of(tensor: torch.Tensor, on_cpu: int, elsewhere: int) -> Iterator[slice]:
    """Yield slices that cover the elements of a tensor, in order.

    Args:
        tensor: of any shape.
        on_cpu: elements of a slice, at most, if the tensor is on a CPU.
        elsewhere: as `on_cpu`, for other devices.
    """
    if (other := _other.get()) is not None:
        return other[0](tensor, on_cpu, elsewhere)
    return slices(tensor.numel(), on_cpu if tensor.device.type == "cpu" else elsewhere)


def row_parts(rows: torch.Tensor, width: int) -> Iterator[slice]:
    """Yield slices of rows, in order; on a CPU the rows of a slice fit in the caches.

    Args:
        rows: one element a row, on the device of the rows.
        width: elements of a row.
    """
    import torch  # noqa: PLC0415 - the module is read without it

    # Each thread of an operation has a piece of its own.
    here = PIECE * torch.get_num_threads() // max(1, width)
    return parts_of(rows, max(1, here), max(1, rows.numel()))


def slices(elements: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` elements each; the last may be smaller."""
    for start in range(0, elements, size):
        yield slice(start, min(elements, start + size))
