"""Tensors as exporting takes them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from neaptide.checkpoint import TensorItem

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def items(tensors: dict[str, torch.Tensor]) -> Iterator[TensorItem]:
    @contextmanager
    def loaded(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        yield tensor

    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        yield TensorItem(name, tensor.dtype, shape, lambda tensor=tensor: loaded(tensor))
