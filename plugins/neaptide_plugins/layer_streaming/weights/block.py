"""A block with its parameters and their memory, and a device slot for a block's weights."""

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
    """Ticket (handle) of the last computation that uses the slot's former content."""
    leaving: Ticket = DONE
    """Ticket of the last copy from the slot to the host."""
    views: dict[int, list[torch.Tensor]] = attrs.field(factory=dict)
    """The views of the parameters in `flat`, by the index of their block."""


@attrs.define(eq=False)
class Block:
    """A repeated part of the model. Owns parameters, and a host buffer for these parameters."""

    index: int
    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    """The parameters that no earlier block owns; each parameter has exactly one owner."""
    layout: BufferLayout
    host: torch.Tensor
    """uint8 `[layout.bytes]`: the weights on the host."""
    views: list[torch.Tensor]
    """The parameters' views of `host`."""
    needs: list[Block] = attrs.field(factory=list)
    """The blocks that own the parameters that this block uses.

    They are the block itself and the owners of its tied parameters.
    """
    slot: Slot | None = None
    arrival: Ticket = DONE
    """Ticket of the copy of the weights into the slot."""
    written: Ticket = DONE
    """Ticket of the last copy of the weights back to the host."""
    stale: bool = False
    """True if the weights on the host are newer than the weights in the slot."""
    evicted: frozenset[int] = frozenset()
    """Indices of evicted parameters. Evicted parameters are not fetched."""
    changes: int = 0
    """Version of the weights. Each change of their values increases it."""
    users: int = 0
    """Number of current uses on the device."""
    used: int = 0
    """Counter value at the last use.

    The least recently used block is removed from its slot first.
    """

    def bind(self, views: Sequence[torch.Tensor]) -> None:
        """Rebind the parameters to `views`."""
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

    def settle(self) -> None:
        """Block the host until no copy reads or writes the weights on the host."""
        self.arrival.finish()
        self.written.finish()

    def __repr__(self) -> str:
        return f"<Block {self.name!r}>"
