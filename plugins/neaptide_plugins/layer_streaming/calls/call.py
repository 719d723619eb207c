"""One call of a block, between its forward and its backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.machine.devices import empty_cache
from neaptide_toolkit.offload import DONE, Ticket
from neaptide_toolkit.recompute import Arguments, CallContext, KeptArgument

from ..oom import is_out_of_memory
from .micro_batches import Batch
from .reads import FIRST, Reads
from .tensors import FoundTensors, replaced
from .unit import apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.autograd.graph import Node

    from neaptide_toolkit.offload.layout import Place
    from neaptide_toolkit.recompute.call_context import RandomNumbers
    from neaptide_toolkit.recompute.untracked_state import UntrackedState

    from ..weights.order import UseKind
    from .graph_outside import GraphOutside
    from .reads import Edge
    from .unit import Unit

WITHOUT_HOOKS = "don't yet support saved tensor hooks"
"""Part of the error text of torch.func in a forward while hooks on saved tensors are set."""


@attrs.define(eq=False)
class HostBuffer:
    """A buffer in RAM or on the disk for inputs, one after the other."""

    flat: torch.Tensor
    """uint8, with at least as many bytes as the input."""
    read: Ticket = DONE
    """Ticket (handle) of the last copy from the buffer to the device."""
    shown: tuple[Place, torch.Tensor] | None = None
    """The layout of the last input, and its view of `flat`."""

    def view(self, place: Place) -> torch.Tensor:
        """Return the memory of an input."""
        if self.shown is None or self.shown[0] != place:
            typed = self.flat[: place.bytes].view(place.dtype)
            self.shown = place, typed.as_strided(place.shape, place.strides)
        return self.shown[1]


@attrs.define(eq=False)
class Waiting:
    """An input that is stored until the backward; several blocks may share the input."""

    host: HostBuffer
    place: Place
    """Dtype, shape and strides of the input."""
    left: Ticket
    """Ticket (handle) of the copy of the input to the buffer."""
    device: torch.Tensor | None = None
    arrival: Ticket = DONE
    """Ticket of the copy of the input back to the device."""


@attrs.define(eq=False)
class Call:
    """The state of one call between its forward and its backward."""

    unit: Unit
    arguments: Arguments
    args: Any
    kwargs: Any
    inputs: list[torch.Tensor]
    """The distinct tensors in the arguments, including those inside containers."""
    shared: list[nn.Parameter]
    weights: tuple[int, ...]
    """Version of the weights of each block whose parameters the call uses."""
    kept: list[KeptArgument] = attrs.field(init=False)
    trained: list[bool] = attrs.field(init=False)
    """Whether each parameter that streams was trained when the block was called."""
    contexts: list[CallContext] = attrs.field(factory=list)
    """One context per micro-batch."""
    untracked: list[UntrackedState] = attrs.field(factory=list)
    """One state per micro-batch."""
    waiting: list[tuple[KeptArgument, Waiting]] = attrs.field(factory=list)
    """The inputs that are not on the device."""
    whole: Batch | None = None
    """The batch in one piece; None if no argument has a batch."""
    batch: Batch | None = None
    """The batch in pieces; None if the batch is not split."""
    caches: bool = False
    """Whether autocast casts a weight once, be it autocast of the block itself."""
    cast_once: Node | None = None
    """Stands for the autocast context, under which a weight is cast once; None if there is none."""
    lowered: list[int] = attrs.field(factory=list)
    """The places of leaves of which the autocast context has a 16-bit copy, among `shared` and
    then `inputs`."""
    slots: int = FIRST
    """How many terms of the gradient of each input the backward can return."""
    reads: Reads | None = None
    """Where the forward has read its inputs; None if the batch is split."""
    nodes: int = 0
    """How many nodes the forward made last."""
    drawn: RandomNumbers | None = None
    """The state of torch's generators after the forward."""
    outside: GraphOutside | None = None
    """The autograd graph before the call; None if the call is not checked."""
    result: Any = None
    came: list[torch.Tensor] = attrs.field(factory=list)
    """The distinct tensors that the forward returned or changed."""
    watched: list[torch.Tensor] | None = None
    """Some elements of the tensors in `came`; None if the backward does not compare them."""

    def __attrs_post_init__(self) -> None:
        self.trained = self.unit.trained()
        self.kept = [kept for _, _, kept in self.arguments.passed if isinstance(kept, KeptArgument)]

    def run(
        self, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, list[torch.Tensor]]:
        """Call the block, and return its result and its distinct output tensors.

        Outputs are the tensors in the result, inputs that were changed in place, and tensors that
        the block has stored in an argument (a cache).
        """
        versions = [tensor._version for tensor in inputs]
        start = _number()
        result = apart(self.unit.forward(*args, **kwargs), self.unit.residency)
        self.nodes = _number() - start
        found = FoundTensors().look(result)
        for tensor, version in zip(inputs, versions, strict=True):
            if tensor._version != version:
                found.look(tensor)
        if not self.arguments.is_plain:
            known = {id(tensor) for tensor in inputs}
            for tensor in FoundTensors().look((args, kwargs)).tensors:
                if id(tensor) not in known:
                    found.look(tensor)
        return result, found.tensors

    def read_again(
        self, edges: Sequence[Edge | None], outputs: Sequence[torch.Tensor]
    ) -> list[list[Edge]] | None:
        """Return where the last `run` has read, if it has read as the forward; else None."""
        return None if self.reads is None else self.reads.followed(edges, outputs, self.nodes)

    def bare(self) -> list[torch.Tensor]:
        """Return the output tensors without the graph of the forward."""
        known = {id(tensor) for tensor in self.inputs}
        return [one if id(one) in known else one.detach() for one in self.came]

    def finish(self, outputs: tuple[torch.Tensor, ...]) -> Any:
        """Replace the result's tensors by `outputs`, which are in the graph; return the result."""
        others = {id(old): new for old, new in zip(self.came, outputs, strict=True)}
        result = replaced(self.result, others)
        known = {id(tensor) for tensor in self.inputs}
        added = {key: new for key, new in others.items() if key not in known}
        if added and not self.arguments.is_plain:
            replaced((self.args, self.kwargs), added)
        self.arguments.settle()
        self.args = self.kwargs = self.result = None
        self.inputs, self.came = [], []
        return result

    def split_more(self, failed: str, kind: UseKind) -> None:
        """Double the number of pieces.

        Raises OutOfMemoryError, with the text `failed`, if the batch cannot be split further.
        """
        unit = self.unit
        now = 1 if self.batch is None else self.batch.count
        whole, reason = self.whole, None
        if not unit.splittable:
            reason = "whose statistics need the whole batch"
        elif whole is None or whole.size < 2 * now:
            reason = "which has too few samples to split further"
        elif kind == "backward" and self.contexts[0].random_moved(self.drawn):
            reason = "which would draw other random numbers in smaller pieces"
        if reason is not None or whole is None:
            msg = f"block {unit.block.name!r}, {reason}: {failed}"
            raise torch.OutOfMemoryError(msg)
        self.batch = batch = Batch(whole.size, 2 * now)
        unit.micro_batches = max(unit.micro_batches, batch.count)
        empty_cache(self.unit.residency.device)


def _number() -> int:
    """Return the number that the next node of this thread gets."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # torch leaves it so
    return number


def tried(action: Callable[[], None]) -> str | None:
    """Run `action`; return None, or the text of an error after which the caller can try again.

    Such errors are out-of-memory errors and the error of torch.func that contains `WITHOUT_HOOKS`.
    All other errors are raised. The stack frames of the error hold tensors. The error and these
    tensors are released on return.
    """
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) and WITHOUT_HOOKS not in str(error):
            raise
        return str(error)
    return None
