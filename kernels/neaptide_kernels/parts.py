"""Tensors in parts, so that temporary tensors stay small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Parts = Callable[["torch.Tensor", int, int], Iterator[slice]]
"""Called as `parts_of` is."""

_other: ContextVar[Parts | None] = ContextVar("parts", default=None)


@contextmanager
def parts_by(make: Parts) -> Iterator[None]:
    """Within this context, `parts_of` returns what `make` returns."""
    token = _other.set(make)
    try:
        yield
    finally:
        _other.reset(token)


def parts_of(tensor: torch.Tensor, on_cpu: int, elsewhere: int) -> Iterator[slice]:
    """Yield slices that cover the elements of a tensor, in order.

    Args:
        tensor: of any shape.
        on_cpu: elements of a slice, at most, if the tensor is on a CPU.
        elsewhere: as `on_cpu`, for other devices.
    """
    if (other := _other.get()) is not None:
        return other(tensor, on_cpu, elsewhere)
    return slices(tensor.numel(), on_cpu if tensor.device.type == "cpu" else elsewhere)


def slices(elements: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` elements each; the last may be smaller."""
    for start in range(0, elements, size):
        yield slice(start, min(elements, start + size))
