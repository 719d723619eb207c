"""A block, its parameters and where they are; a slot on the device for one block's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.offload import DONE, Ticket

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from neaptide_toolkit.offload import BufferLayout


@attrs.define(eq=False)
class Slot:
    """A buffer on the device for one block's weights."""

    flat: torch.Tensor
    """uint8 `[bytes of the largest block]`."""
    free: Ticket = DONE
    """When what was computed from its former content is over."""
    leaving: Ticket = DONE
    """Of the last copy out of it."""
    views: dict[int, list[torch.Tensor]] = attrs.field(factory=dict)
    """By block."""


@attrs.define(eq=False)
class Block:
    """A repeated part of the model, the parameters it owns, and where they are."""

    index: int
    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    """Those no earlier block owns; each is in exactly one block."""
    layout: BufferLayout
    host: torch.Tensor
    """uint8 `[layout.bytes]`: where the weights are when nothing computes with them."""
    views: list[torch.Tensor]
    """The parameters' places in `host`."""
    needs: list[Block] = attrs.field(factory=list)
    """The owners of all parameters the block uses: itself, and owners of tied ones."""
    slot: Slot | None = None
    arrival: Ticket = DONE
    """Of the copy into the slot."""
    written: Ticket = DONE
    """Of the last copy back to the host."""
    stale: bool = False
    """Whether the host has newer weights than the slot."""
    evicted: frozenset[int] = frozenset()
    """Places of parameters that nobody computes with for now."""
    changes: int = 0
    """How often the weights have been given other values."""
    users: int = 0
    used: int = 0
    """When last, for the least recently used one to leave first."""

    def bind(self, views: Sequence[torch.Tensor]) -> None:
        """Let the parameters lie in `views`."""
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

    def __repr__(self) -> str:
        return f"<Block {self.name!r}>"
