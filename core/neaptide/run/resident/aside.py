"""Tensors that give their memory up for a while, their values waiting in RAM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .layout import Layout, is_dense
from .pages import Pages, mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

_HANDLE = 1
"""What `users` is asked with uses the storage, too."""


class Aside:
    """Moves the memory of `tensors` to a buffer of its own in RAM, until `back`.

    They stay the objects they are, and show their values there, which may be read and written.
    Copies are bitwise. Pass those that `movable` accepts.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        layout = Layout.of(tensors)
        # The pages live as long as a tensor lies in them.
        _, flat = mapped(layout.bytes, Pages)
        places = layout.views(flat)
        self._taken = [
            (tensor, tensor.device, place) for tensor, place in zip(tensors, places, strict=True)
        ]
        for tensor, _, place in self._taken:
            place.copy_(tensor.detach())
            tensor.data = place

    def back(self) -> None:
        """Give the tensors memory where they were, and their values as they are now.

        Raises what allocating raises; those that are not back then are with the next call.
        """
        while self._taken:
            tensor, device, place = self._taken[-1]
            home = torch.empty_strided(
                place.shape, place.stride(), dtype=place.dtype, device=device
            )
            tensor.data = home.copy_(place)
            self._taken.pop()


def movable(tensor: torch.Tensor) -> bool:
    """Return whether the memory of `tensor` is all its own, so that moving it frees it.

    A view of other tensors, one that others are views of, and subclasses are not.
    """
    if not is_whole(tensor):
        return False
    return users(tensor.untyped_storage()) == 1


def users(storage: torch.UntypedStorage) -> int:
    """Return how many tensors use `storage`, whoever has them; graphs that saved one count."""
    count: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no other way to ask
    return count - _HANDLE


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is a plain one over all of its memory, whoever else may see that."""
    if type(tensor.data) is not torch.Tensor or tensor.layout != torch.strided:
        return False
    own = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return own and is_dense(tensor)
