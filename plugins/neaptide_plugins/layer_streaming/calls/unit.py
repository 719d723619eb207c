"""What calls of a block share: its weights, and what is learned of it as it goes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.offload import current
from neaptide_toolkit.recompute import ChangedInPlaceError

from .tensors import FoundTensors, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide_toolkit.recompute import Arguments, Buffers

    from ..updates.gradients import Gradients
    from ..weights.block import Block
    from ..weights.order import UseKind
    from ..weights.residency import Residency


@attrs.define(eq=False)
class Unit:
    """A block with its weights on the device while it runs, and what its calls have shown."""

    block: Block
    forward: Callable[..., Any]
    """Its module's own."""
    residency: Residency
    gradients: Gradients
    buffers: Buffers
    micro_batches: int = 1
    splittable: bool = True
    """Whether it may go on in more micro-batches where memory runs out."""
    changes_inputs: bool | None = None
    probed: bool = False
    hooked: bool = True
    """Whether what its forward's graph saves is dropped at once: not where it uses torch.func."""
    seen: int = 0
    """Calls with gradients so far."""

    def weights(self) -> tuple[int, ...]:
        """Return which weights the block has now: they change at an update."""
        return tuple(owner.changes for owner in self.block.needs)

    def check_weights(self, before: tuple[int, ...]) -> None:
        """Raise ChangedInPlaceError where the block has other weights by now."""
        if before != self.weights():
            raise ChangedInPlaceError(weights_changed(self.block.name))

    @contextmanager
    def using(self, kind: UseKind) -> Iterator[None]:
        """Have the weights on the device; autocast would keep casts of them, and is told not to."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        own = [(owner, one) for owner in self.block.needs for one in owner.parameters]
        versions = [one._version for _, one in own]
        try:
            # Its random state is that of the current device.
            with current(self.residency.device), self.residency.use(self.block, kind):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)
        for (owner, parameter), version in zip(own, versions, strict=True):
            if parameter._version != version:
                self.residency.changed(owner)
                msg = (
                    f"block {self.block.name!r} changes a parameter of shape "
                    f"{list(parameter.shape)} in place while it runs (an embedding's max_norm "
                    f"does), which would be lost; exclude it from layer streaming"
                )
                raise RuntimeError(msg)

    def learn(self, arguments: Arguments) -> None:
        """Note whether calls change their inputs in place: if not, no copies need be kept."""
        if self.changes_inputs is None:
            self.changes_inputs = arguments.changed
            if not arguments.changed:
                arguments.share()
        elif arguments.changed and not self.changes_inputs:
            msg = (
                f"block {self.block.name!r} changes an input in place that it did not change "
                f"before; exclude it from layer streaming"
            )
            raise RuntimeError(msg)


def apart(returned: Any, residency: Residency) -> Any:
    """Return it with copies of what lies in a slot, which is given to another block next."""
    others = {
        id(tensor): tensor.clone()
        for tensor in FoundTensors().look(returned).tensors
        if residency.holds(tensor)
    }
    return replaced(returned, others) if others else returned


def weights_changed(block: str) -> str:
    """Return what to say of a backward through weights that are not there any more."""
    return (
        f"the weights of block {block!r} have changed since the forward whose backward this is (an "
        f"update in between?); run the backward first"
    )
