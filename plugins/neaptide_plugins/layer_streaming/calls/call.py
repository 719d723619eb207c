"""One call of a block, between its forward and its backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.offload import DONE, Ticket
from neaptide_toolkit.recompute import Arguments, CallContext, KeptArgument

from ..oom import is_out_of_memory
from .micro_batches import Batch
from .tensors import FoundTensors, replaced
from .unit import apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..weights.order import UseKind
    from .graph_outside import GraphOutside
    from .unit import Unit
    from .untracked_state import UntrackedState

WITHOUT_HOOKS = "don't yet support saved tensor hooks"
"""What torch.func says inside a forward whose graph is let go as it is made."""


@attrs.define(eq=False)
class Waiting:
    """One tensor in RAM; several blocks may have been passed it."""

    host: torch.Tensor
    """uint8, at least as large."""
    like: torch.Tensor
    """Without storage: shape, strides and dtype."""
    left: Ticket
    device: torch.Tensor | None = None
    arrival: Ticket = DONE


@attrs.define(eq=False)
class Call:
    """What is known of one call between its forward and its backward."""

    unit: Unit
    arguments: Arguments
    args: Any
    kwargs: Any
    inputs: list[torch.Tensor]
    """The distinct tensors passed, wherever they are nested."""
    shared: list[nn.Parameter]
    weights: tuple[int, ...]
    """Of which update they are."""
    kept: list[KeptArgument] = attrs.field(init=False)
    contexts: list[CallContext] = attrs.field(factory=list)
    """Of each micro-batch."""
    untracked: list[UntrackedState] = attrs.field(factory=list)
    """Likewise."""
    waiting: list[tuple[KeptArgument, Waiting]] = attrs.field(factory=list)
    """What of it is in RAM meanwhile."""
    whole: Batch | None = None
    """The batch in one piece, where there is one."""
    batch: Batch | None = None
    """In pieces; None where it goes through as it is."""
    random: bool = False
    """Whether the forward drew random numbers."""
    outside: GraphOutside | None = None
    """The graph around the call, while that is checked."""
    result: Any = None
    came: list[torch.Tensor] = attrs.field(factory=list)
    """The distinct tensors that came out of the forward."""
    watched: list[torch.Tensor] | None = None
    """Samples of their values, where the backward is to compare them."""

    def __attrs_post_init__(self) -> None:
        self.kept = [kept for _, _, kept in self.arguments.passed if isinstance(kept, KeptArgument)]

    def run(
        self, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, list[torch.Tensor]]:
        """Call the block; return its result and the distinct tensors that came out.

        Besides those in the result: inputs changed in place, and what was put into objects that
        were passed (a cache).
        """
        versions = [tensor._version for tensor in inputs]
        result = apart(self.unit.forward(*args, **kwargs), self.unit.residency)
        found = FoundTensors().look(result)
        for tensor, version in zip(inputs, versions, strict=True):
            if tensor._version != version:
                found.look(tensor)
        known = {id(tensor) for tensor in inputs}
        for tensor in FoundTensors().look((args, kwargs)).tensors:
            if id(tensor) not in known:
                found.look(tensor)
        return result, found.tensors

    def finish(self, outputs: tuple[torch.Tensor, ...]) -> Any:
        """Return what the block returned, with the graph's tensors in it and in passed objects."""
        others = {id(old): new for old, new in zip(self.came, outputs, strict=True)}
        result = replaced(self.result, others)
        known = {id(tensor) for tensor in self.inputs}
        added = {key: new for key, new in others.items() if key not in known}
        if added:
            replaced((self.args, self.kwargs), added)
        self.arguments.settle()
        self.args = self.kwargs = self.result = None
        self.inputs, self.came = [], []
        return result

    def split_more(self, failed: str, kind: UseKind) -> None:
        """Halve the pieces; OutOfMemoryError, with the message, where that cannot be."""
        unit = self.unit
        now = 1 if self.batch is None else self.batch.count
        whole, reason = self.whole, None
        if not unit.splittable:
            reason = "whose statistics are of the whole batch"
        elif whole is None or whole.size < 2 * now:
            reason = "which has no more samples to split"
        elif kind == "backward" and self.random:
            reason = "which draws random numbers, others in smaller pieces"
        if reason is not None or whole is None:
            msg = f"block {unit.block.name!r}, {reason}: {failed}"
            raise torch.OutOfMemoryError(msg)
        self.batch = batch = Batch(whole.size, 2 * now)
        unit.micro_batches = max(unit.micro_batches, batch.count)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def tried(action: Callable[[], None]) -> str | None:
    """Return None, or the allocator's message, once nothing of what failed is held any more."""
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) and WITHOUT_HOOKS not in str(error):
            raise
        return str(error)
    return None
