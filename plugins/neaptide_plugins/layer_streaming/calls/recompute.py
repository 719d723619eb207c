"""A block as one autograd.Function: forward without its graph, backward computes it again.

So nothing holds a weight between the two, and the weights may leave the device. The batch may go
through the block in micro-batches, on one fetch of its weights.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.offload import current
from neaptide_toolkit.recompute import ChangedInPlaceError, record

from .backward import backward
from .call import Call
from .forward import forward
from .tensors import Found, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from neaptide_toolkit.recompute import Arguments, Buffers

    from ..updates.gradients import Gradients
    from ..weights.block import Block
    from ..weights.order import Moment
    from ..weights.residency import Residency
    from .inputs import Inputs


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
    inputs: Inputs | None = None
    """Where inputs wait for the backward; None keeps them where they are."""
    micro_batches: int = 1
    splittable: bool = True
    """Whether it may go on in more micro-batches where memory runs out."""
    changes_inputs: bool | None = None
    probed: bool = False
    hooked: bool = True
    """Whether what its forward's graph saves is dropped at once: not where it uses torch.func."""
    seen: int = 0
    """Calls with gradients so far."""
    calls: weakref.WeakSet[Call] = attrs.field(factory=weakref.WeakSet)
    """Those between their forward and their backward."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the inputs that wait for a backward."""
        return sum(kept.tensor.nbytes for call in self.calls for kept in call.kept)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns, its tensors in the graph.

        A model that is compiled around its blocks goes on eagerly in here.
        """
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._called)(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it so
        return self._called(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
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
        call = Call(self, arguments, args, kwargs, inputs, shared, self.weights())
        self.calls.add(call)
        anchor = torch.zeros((), requires_grad=bool(streamed))
        outputs = _Function.apply(call, anchor, *shared, *inputs)  # type: ignore[no-untyped-call]  # torch leaves it so
        self.gradients.expect(self.block)
        return call.finish(outputs)

    def weights(self) -> tuple[int, ...]:
        """Return which weights the block has now: they change at an update."""
        return tuple(owner.changes for owner in self.block.needs)

    def check_weights(self, before: tuple[int, ...]) -> None:
        """Raise ChangedInPlaceError where the block has other weights by now."""
        if before != self.weights():
            raise ChangedInPlaceError(weights_changed(self.block.name))

    @contextmanager
    def using(self, moment: Moment) -> Iterator[None]:
        """Have the weights on the device; autocast would keep casts of them, and is told not to."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        own = [(owner, one) for owner in self.block.needs for one in owner.parameters]
        versions = [one._version for _, one in own]
        try:
            # Its random state is that of the current device.
            with current(self.residency.device), self.residency.use(self.block, moment):
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


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:
        del anchor, tensors  # they are in the call, too; here they tie it into the graph
        ctx.call, ctx.name = call, call.unit.block.name
        ctx.set_materialize_grads(False)
        with call.unit.using("forward"):
            outputs = forward(call)
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
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        call, ctx.call = ctx.call, None  # what it keeps is let go of, block by block
        if call is None:
            msg = (
                f"block {ctx.name!r} is run backward a second time: its inputs are kept for one "
                f"backward only (retain_graph, or a tensor of the block's graph that another part "
                f"of the model holds on to); set mode = 'graph'"
            )
            raise RuntimeError(msg)
        anchor, _ = ctx.next_functions[0]
        own_too = anchor is None or torch._C._will_engine_execute_node(anchor)
        twice = torch.is_grad_enabled()
        with torch.no_grad():
            found = backward(call, gradients, own_too=own_too)
        return (None, None, *(_once(ctx.name, found) if twice else found))


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated; what torch has for it lets constant ones pass."""

    @staticmethod
    def forward(ctx: Any, name: str, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        msg = (
            f"block {ctx.name!r} is differentiated twice (create_graph), which computing it again "
            f"does not allow for; set mode = 'graph', or exclude the block"
        )
        raise RuntimeError(msg)


def _once(name: str, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    given = [one.detach().requires_grad_() for one in gradients if one is not None]
    guarded = iter(_Once.apply(name, *given))  # type: ignore[no-untyped-call]  # torch leaves it so
    return [None if one is None else next(guarded) for one in gradients]


def weights_changed(block: str) -> str:
    """Return what to say of a backward through weights that are not there any more."""
    return (
        f"the weights of block {block!r} have changed since the forward whose backward this is (an "
        f"update in between?); run the backward first"
    )


def _nowhere(_: torch.Tensor) -> None:
    """Tell `record` that no tensor is an earlier block's output."""
