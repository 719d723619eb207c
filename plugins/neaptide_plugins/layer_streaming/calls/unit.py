"""The state that all calls of a block share."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import ModelError
from neaptide_toolkit.offload import current
from neaptide_toolkit.recompute import ChangedInPlaceError

from .tensors import replaced, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide_toolkit.recompute import Arguments, Buffers

    from ..updates.gradients import Gradients
    from ..weights.block import Block
    from ..weights.order import UseKind
    from ..weights.residency import Residency


@attrs.define(eq=False)
class Unit:
    """A block, the parts that run it, and facts learned from its calls."""

    block: Block
    forward: Callable[..., Any]
    """The module's original forward."""
    residency: Residency
    gradients: Gradients
    buffers: Buffers
    micro_batches: int = 1
    splittable: bool = True
    """True if the block may use more micro-batches when memory runs out."""
    changes_inputs: bool | None = None
    probed: bool = False
    hooked: bool = True
    """True if hooks drop the tensors that autograd saves in the forward.

    False for a forward that uses torch.func, which does not support such hooks.
    """
    reads: int = 0
    """The most reads of one input in a call so far; 0 before the first call."""
    seen: int = 0
    """Number of calls with gradients so far."""

    def weights(self) -> tuple[int, ...]:
        """Return, for each block whose parameters are used, the version of its weights."""
        if not self.residency.fresh():
            self.residency.touched.look(self.block.needs)
        return tuple(owner.changes for owner in self.block.needs)

    def check_weights(self, before: tuple[int, ...]) -> None:
        """Raise ChangedInPlaceError if the weights have changed since version `before`."""
        if before != self.weights():
            raise ChangedInPlaceError(weights_changed(self.block.name))

    def trained(self) -> list[bool]:
        """Return, for each parameter that streams, whether it is trained."""
        return [one.requires_grad for owner in self.block.needs for one in owner.parameters]

    def check_trained(self, before: list[bool]) -> None:
        """Raise ModelError if a parameter was frozen or thawed since `before`."""
        if before != self.trained():
            msg = (
                f"parameters of block {self.block.name!r} were frozen or thawed (requires_grad) "
                f"between its forward and its backward; set mode = 'graph', or exclude the block"
            )
            raise ModelError(msg)

    @contextmanager
    def using(self, kind: UseKind) -> Iterator[None]:
        """Hold the weights on the device, and switch off autocast's cache of cast weights."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            # Random functions use the generator of the current device.
            with current(self.residency.device), self.residency.use(self.block, kind):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)

    def learn(self, arguments: Arguments) -> None:
        """Learn whether calls change inputs in place.

        If they do not, inputs are stored without copies.
        """
        if self.changes_inputs is None:
            self.changes_inputs = arguments.changed
            if not arguments.changed:
                arguments.share()
        elif arguments.changed and not self.changes_inputs:
            msg = (
                f"block {self.block.name!r} changes an input in place that it did not change "
                f"before; exclude it from layer streaming"
            )
            raise ModelError(msg)


def apart(returned: Any, residency: Residency) -> Any:
    """Return `returned`, with copies instead of tensors that are views of weight buffers.

    A buffer is overwritten when it is used for another block.
    """
    others = {
        id(tensor): tensor.clone() for tensor in tensors_in(returned) if residency.holds(tensor)
    }
    return replaced(returned, others) if others else returned


def weights_changed(block: str) -> str:
    """Return the error text for a backward whose weights have changed since the forward."""
    return (
        f"the weights of block {block!r} have changed between its forward and this backward (by an "
        f"update?); run the backward before the update"
    )
