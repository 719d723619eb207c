"""A block with its parameters and their memory, and a device slot for a block's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import ModelError
from neaptide_toolkit.offload import DONE, Ticket

from .storages import address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

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

    def bind(self, views: Sequence[torch.Tensor]) -> None:
        """Rebind the parameters to `views`."""
        for parameter, view in zip(self.parameters, views, strict=True):
            _set_data(parameter, view)

    def assigned(self) -> list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]]:
        """Return parameters to which the user has assigned a tensor (`p.data = …`).

        Each has its view of the host buffer and a copy of the assigned values. Raises ModelError
        if such a tensor has another shape, dtype or order in memory: kernels sum in an order that
        depends on the strides.
        """
        found = []
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.dtype == view.dtype and _place(parameter) == _place(view):
                continue
            if _kind(parameter) != _kind(view):
                name = next(
                    name for name, one in self.module.named_parameters() if one is parameter
                )
                msg = (
                    f"parameter {name!r} of streamed block {self.name!r} is now "
                    f"{_kind(parameter)}, and was {_kind(view)}: a streamed weight keeps its "
                    "shape, dtype and strides; close the trainer before such a change, and make a "
                    "new one"
                )
                raise ModelError(msg)
            found.append((parameter, view, parameter.detach().clone()))
        return found

    def settle(self) -> None:
        """Block the host until no copy reads or writes the weights on the host."""
        self.arrival.finish()
        self.written.finish()
        self.written_in_step = False

    def __repr__(self) -> str:
        return f"<Block {self.name!r}>"


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is, without an operation: the memory may be copied meanwhile."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _kind(tensor: torch.Tensor) -> str:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    sizes = zip(shape, tensor.stride(), strict=True) if tensor.numel() else ()
    strides = [stride for size, stride in sizes if size > 1]  # others mean nothing
    return f"{dtype} of shape {shape} and strides {strides}"


@torch.no_grad()
def adopted(blocks: Iterable[Block]) -> list[Block]:
    """Copy tensors that the user has assigned to parameters to the host buffers of their blocks.

    No copy of such a block may be under way. Two of them may have swapped their tensors.
    Return the blocks that have such parameters.
    """
    found = [(block, taken) for block in blocks if (taken := block.assigned())]
    for _, taken in found:
        for parameter, view, values in taken:
            view.copy_(values)
            _set_data(parameter, view)
    return [block for block, _ in found]


def owner_of(blocks: Iterable[Block], tensor: torch.Tensor) -> Block | None:
    """Return the block whose slot contains `tensor`, or None."""
    there = (block for block in blocks if block.slot is not None)
    storage = address(tensor)
    return next((one for one in there if one.slot and address(one.slot.flat) == storage), None)
