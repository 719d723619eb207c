"""A block with its parameters and their memory, and a device slot for a block's weights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide_toolkit.offload import DONE, Ticket, users
from neaptide_toolkit.offload.disk import copy

from .storages import address, where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neaptide_toolkit.offload import BufferLayout

_set_data: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
"""Sets `.data` of a parameter, which does not count as done by other code."""


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
    proxies: dict[int, list[nn.Parameter]] = attrs.field(factory=dict)
    """Parameters on the same memory, which an optimizer can step."""

    def of(self, block: Block) -> torch.Tensor:
        """Return the bytes of a block, uint8."""
        size = block.layout.bytes
        return self.flat if self.flat.nbytes == size else self.flat[:size]

    def forget(self, block: Block) -> None:
        """Drop the views of a block."""
        self.views.pop(block.index, None)
        self.proxies.pop(block.index, None)

    def proxies_of(self, block: Block) -> list[nn.Parameter]:
        """Return parameters that are views of a block's parameters in `flat`."""
        if block.index not in self.proxies:
            with torch.inference_mode(mode=False):
                self.proxies[block.index] = [
                    nn.Parameter(view, requires_grad=False) for view in self.views_of(block)
                ]
        return self.proxies[block.index]

    def views_of(self, block: Block) -> list[torch.Tensor]:
        """Return the views of a block's parameters in `flat`."""
        if block.index not in self.views:
            with torch.inference_mode(mode=False):  # autograd cannot save an inference tensor
                self.views[block.index] = block.layout.views(self.flat)
        return self.views[block.index]


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
    """The weights on the host: the parameters' views of `host`, except those in `apart`."""
    needs: list[Block] = attrs.field(factory=list)
    """The blocks that own the parameters that this block uses.

    They are the block itself and the owners of its tied parameters.
    """
    homes: list[torch.Tensor] = attrs.field(
        init=False, default=attrs.Factory(lambda self: list(self.views), takes_self=True)
    )
    """The place of each parameter in `host`."""
    places: list[tuple[Any, ...]] = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: list(map(where, self.views)), takes_self=True),
    )
    """Where each of `views` is."""
    apart: set[int] = attrs.field(init=False, factory=set)
    """Indices of parameters whose weights are not in `host`, see `adopted`."""
    own_users: int = attrs.field(init=False)
    """How many tensors of this object use the memory of `host`."""
    slot: Slot | None = None
    arrival: Ticket = DONE
    """Ticket of the copy of the weights into the slot."""
    written: Ticket = DONE
    """Ticket of the last copy of the weights back to the host."""
    written_in_step: bool = False
    """True if the host has not waited for `written`, the copy of an update."""
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

    def __attrs_post_init__(self) -> None:
        self.own_users = users(self.host.untyped_storage())

    @property
    def has_gradient(self) -> bool:
        """Whether a parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def put(self, place: int, view: torch.Tensor) -> None:
        """Let the weights of a parameter on the host be those of `view`."""
        self.views[place], self.places[place] = view, where(view)

    def bind(self, views: Sequence[torch.Tensor]) -> None:
        """Rebind the parameters to `views`."""
        for parameter, view in zip(self.parameters, views, strict=True):
            _set_data(parameter, view)

    def fetching(self, slot: Slot) -> Callable[[], None]:
        """Return a function that copies the weights from the host to `slot`."""
        return partial(_copy_all, self._pairs(slot))

    def leaving(self, slot: Slot) -> Callable[[], None]:
        """Return a function that copies the weights from `slot` to the host."""
        return partial(_copy_all, [(home, there) for there, home in self._pairs(slot)])

    def _pairs(self, slot: Slot) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what to copy: tensors in `slot`, each with its tensor on the host."""
        if not self.evicted and not self.apart:
            return [(slot.of(self), self.host)]
        both = enumerate(zip(slot.views_of(self), self.views, strict=True))
        return [pair for place, pair in both if place not in self.evicted]

    def settle(self) -> None:
        """Block the host until no copy reads or writes the weights on the host."""
        self.arrival.finish()
        self.written.finish()
        self.written_in_step = False

    def __repr__(self) -> str:
        return f"<Block {self.name!r}>"


def _copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for target, source in pairs:
        copy(target, source)


def owner_of(blocks: Iterable[Block], tensor: torch.Tensor) -> Block | None:
    """Return the block whose slot contains `tensor`, or None."""
    there = (block for block in blocks if block.slot is not None)
    storage = address(tensor)
    return next((one for one in there if one.slot and address(one.slot.flat) == storage), None)
