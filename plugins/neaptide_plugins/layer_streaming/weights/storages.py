"""Tells whether a tensor is a view of one of the buffers of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

_NAN_BYTE = 0xFF
"""A byte. A tensor that consists of this byte is NaN in every floating-point dtype."""


class Storages:
    """The storages of slots and of blocks' host buffers."""

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        self._addresses = set(map(address, buffers))

    def add(self, buffer: torch.Tensor) -> None:
        """Add a buffer."""
        self._addresses.add(address(buffer))

    def discard(self, buffer: torch.Tensor) -> None:
        """Remove a buffer."""
        self._addresses.discard(address(buffer))

    def hold(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is a view of a buffer."""
        try:
            return address(tensor) in self._addresses
        except RuntimeError:  # sparse tensors and wrappers have no storage
            return False


def address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def where(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is, without an operation: the memory may be copied meanwhile."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def fill_with_nan(flat: torch.Tensor) -> None:
    """Overwrite a buffer of bytes, so that a wrong read shows."""
    flat.fill_(_NAN_BYTE)
