"""A block as one autograd.Function: forward without a graph, backward computes it again.

So nothing holds a weight between the two, and the weights may leave the device. The batch may go
through the block in micro-batches, on one fetch of its weights.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.autograd.function import once_differentiable

from neaptide.recompute import Arguments, Buffers, Kept, Surroundings, record

from .pieces import Batch, joined
from .tensors import Found, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from .gradients import Gradients
    from .order import Moment
    from .residency import Block, Residency


@attrs.define(eq=False)
class Recomputed:
    """Runs one block in place of its module's own forward."""

    block: Block
    forward: Callable[..., Any]
    residency: Residency
    gradients: Gradients
    shared: list[nn.Parameter]
    """Parameters the block uses and does not stream: they stay where they are."""
    buffers: Buffers
    micro_batches: int = 1
    changes_inputs: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns, its tensors in the graph."""
        streamed = [p for owner in self.block.needs for p in owner.parameters if p.requires_grad]
        shared = [parameter for parameter in self.shared if parameter.requires_grad]
        training = torch.is_grad_enabled()
        if not training or not (
            streamed
            or shared
            or any(tensor.requires_grad for tensor in Found().look((args, kwargs)).tensors)
        ):
            with self.using("forward" if training else "infer"):
                return self.apart(self.forward(*args, **kwargs))
        # The first call tells whether inputs are changed; until then they are kept as copies.
        arguments, _ = record(args, kwargs, _nowhere, copied=self.changes_inputs is not False)
        inputs = [tensor for tensor, _, _ in arguments.passed]
        call = _Call(self, arguments, args, kwargs, inputs, shared)
        anchor = torch.zeros((), requires_grad=bool(streamed))
        outputs = _Function.apply(call, anchor, *shared, *inputs)  # type: ignore[no-untyped-call]  # torch leaves it so
        self.gradients.expect(self.block)
        return call.finish(outputs)

    @contextmanager
    def using(self, moment: Moment) -> Iterator[None]:
        """Have the weights on the device; autocast would keep casts of them, and is told not to."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with self.residency.use(self.block, moment):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)

    def apart(self, returned: Any) -> Any:
        """Return it with copies of what lies in a slot, which is given to another block next."""
        others = {
            id(tensor): tensor.clone()
            for tensor in Found().look(returned).tensors
            if self.residency.holds(tensor)
        }
        return replaced(returned, others) if others else returned

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


@attrs.define(eq=False)
class _Call:
    """What is known of one call between its forward and its backward."""

    unit: Recomputed
    arguments: Arguments
    args: Any
    kwargs: Any
    inputs: list[torch.Tensor]
    """The distinct tensors passed, wherever they are nested."""
    shared: list[nn.Parameter]
    kept: list[Kept] = attrs.field(init=False)
    surroundings: list[Surroundings] = attrs.field(factory=list)
    """Of each micro-batch."""
    batch: Batch | None = None
    result: Any = None
    came: list[torch.Tensor] = attrs.field(factory=list)
    """The distinct tensors that came out of the forward."""

    def __attrs_post_init__(self) -> None:
        self.kept = [kept for _, _, kept in self.arguments.passed if isinstance(kept, Kept)]

    # -- forward -------------------------------------------------------------------------------

    def forward(self) -> list[torch.Tensor]:
        """Run the block without a graph, in as many pieces as asked for."""
        unit = self.unit
        if unit.micro_batches > 1:
            self.batch = Batch.of(self.inputs, unit.micro_batches)
        if self.batch is None or self.batch.count == 1:
            self.batch = None
            self.surroundings.append(Surroundings.now(unit.buffers.before()))
            self.result, self.came = self._run(self.args, self.kwargs, self.inputs)
        else:
            results = []
            for piece in range(self.batch.count):
                self.surroundings.append(Surroundings.now(unit.buffers.before()))
                inputs = self.batch.piece(self.inputs, piece)
                memo = {id(kept): given for kept, given in zip(self.kept, inputs, strict=True)}
                args, kwargs = self.arguments.again([], memo)
                results.append(self._run(args, kwargs, inputs))
            self.result, self.came = joined(unit.block.name, results, self.batch)
        unit.learn(self.arguments)
        for surroundings in self.surroundings:
            surroundings.buffers.settle(unit.block.name)
        return self.came

    def _run(
        self, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, list[torch.Tensor]]:
        """Call the block; return its result and the distinct tensors that came out.

        Besides those in the result: inputs changed in place, and what was put into objects that
        were passed (a cache).
        """
        versions = [tensor._version for tensor in inputs]
        result = self.unit.apart(self.unit.forward(*args, **kwargs))
        found = Found().look(result)
        for tensor, version in zip(inputs, versions, strict=True):
            if tensor._version != version:
                found.look(tensor)
        known = {id(tensor) for tensor in inputs}
        for tensor in Found().look((args, kwargs)).tensors:
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

    # -- backward ------------------------------------------------------------------------------

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Compute again, with a graph; return the gradients of what was passed."""
        unit, arrived = self.unit, list(gradients)
        own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
        leaves = [kept.leaf() for kept in self.kept]
        unit.gradients.prepare(unit.block)
        with unit.using("backward"), _set_aside([*own, *self.shared]):
            pieces = 1 if self.batch is None else self.batch.count
            for piece in range(pieces):
                self._backward_of(piece, leaves, arrived)
                if self.batch is not None:
                    unit.gradients.add_piece(unit.block)
            unit.gradients.take(unit.block)
            shared = [parameter.grad for parameter in self.shared]
        return [*shared, *(leaf.grad for leaf in leaves)]

    def _backward_of(
        self, piece: int, leaves: list[torch.Tensor], arrived: list[torch.Tensor | None]
    ) -> None:
        # A leaf that requires grad may not be changed in place, its copy may.
        whole = [
            leaf.clone() if kept.copied else leaf
            for kept, leaf in zip(self.kept, leaves, strict=True)
        ]
        with torch.enable_grad(), self.surroundings[piece].restored():
            inputs = whole if self.batch is None else self.batch.piece(whole, piece)
            memo = {id(kept): given for kept, given in zip(self.kept, inputs, strict=True)}
            args, kwargs = self.arguments.again([], memo)
            _, outputs = self._run(args, kwargs, inputs)
        if len(outputs) != len(arrived):
            msg = (
                f"block {self.unit.block.name!r} returned something else the second time, so it "
                f"cannot be recomputed; exclude it from layer streaming"
            )
            raise RuntimeError(msg)
        pairs = [
            (output, self._share(gradient, piece))
            for output, gradient in zip(outputs, arrived, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            torch.autograd.backward(
                [output for output, _ in pairs], [gradient for _, gradient in pairs]
            )

    def _share(self, gradient: torch.Tensor, piece: int) -> torch.Tensor:
        return gradient if self.batch is None else self.batch.piece([gradient], piece)[0]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:
        del anchor, tensors  # they are in the call, too; here they tie it into the graph
        ctx.call, ctx.name = call, call.unit.block.name
        ctx.set_materialize_grads(False)
        with call.unit.using("forward"):
            outputs = call.forward()
        changed = [
            tensor for tensor, version, _ in call.arguments.passed if tensor._version != version
        ]
        ctx.mark_dirty(*changed)
        ctx.mark_non_differentiable(
            *(
                output
                for output in outputs
                if not (output.is_floating_point() or output.is_complex())
            )
        )
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        call, ctx.call = ctx.call, None  # what it keeps is let go of, block by block
        if call is None:
            msg = (
                f"block {ctx.name!r} is run backward a second time: its inputs are kept for one "
                f"backward only (retain_graph, or a tensor of the block's graph that another part "
                f"of the model holds on to)"
            )
            raise RuntimeError(msg)
        return (None, None, *call.backward(gradients))


@contextmanager
def _set_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let gradients of earlier backwards be, so that this one's are told apart."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = None
            if gradient is not None and gradient.device == parameter.device:
                parameter.grad = gradient


def _nowhere(_: torch.Tensor) -> None:
    """Tell `record` that no tensor is an earlier block's output."""
