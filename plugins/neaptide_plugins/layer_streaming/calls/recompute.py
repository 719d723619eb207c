"""A block as one autograd.Function. Its forward keeps no graph; its backward recomputes the graph.

Between forward and backward no graph holds a weight, so the weights' copy on the device can be
freed. A block can split the batch into micro-batches; the block's weights are fetched once for all
micro-batches.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import ModelError
from neaptide_toolkit.recompute import check_no_transform, eager, record

from .backward import backward
from .call import Call
from .forward import forward
from .leaf_casts import casts_of_leaves
from .tensors import FoundTensors
from .unit import Unit, apart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from .inputs import Inputs


def _anchor() -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.zeros((), requires_grad=True)


@attrs.define(eq=False)
class Recomputed(Unit):
    """Replaces the forward of one block's module."""

    shared: list[nn.Parameter] = attrs.field(kw_only=True)
    """Parameters that the block uses and that do not stream."""
    inputs: Inputs | None = attrs.field(kw_only=True, default=None)
    """Moves inputs to RAM until the backward; None keeps them on the device."""
    calls: weakref.WeakSet[Call] = attrs.field(init=False, factory=weakref.WeakSet)
    """Calls whose backward has not run."""
    anchor: torch.Tensor = attrs.field(init=False, factory=_anchor)
    """A leaf that stands for the weights in the graph."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of stored inputs on the device."""
        return sum(kept.tensor.nbytes for call in self.calls for kept in call.kept)

    @eager
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result, with its tensors in the graph."""
        check_no_transform(self.block.name, "layer-streaming")
        streamed = [p for owner in self.block.needs for p in owner.parameters if p.requires_grad]
        shared = [parameter for parameter in self.shared if parameter.requires_grad]
        training = torch.is_grad_enabled()
        if not training or not (
            streamed
            or shared
            or any(tensor.requires_grad for tensor in FoundTensors().look((args, kwargs)).tensors)
        ):
            with self.using("forward" if training else "infer"):
                return apart(self.forward(*args, **kwargs), self.residency)
        # The first call shows whether the block changes its inputs. Until then, copies are stored.
        arguments, _ = record(args, kwargs, _nowhere, copied=self.changes_inputs is not False)
        inputs = [tensor for tensor, _, _ in arguments.passed]
        if any(one is parameter for one in inputs for parameter in shared):
            raise ModelError(_both_ways(self.block.name))
        call = Call(self, arguments, args, kwargs, inputs, shared, self.weights())
        call.caches = torch.is_autocast_cache_enabled()
        call.cast_once = self.gradients.casts.context()
        call.slots = self.reads or call.slots
        casts: dict[int, torch.Tensor] = {}
        if call.cast_once is not None:
            casts = casts_of_leaves([*shared, *inputs], self.residency.device.type)
            call.lowered = list(casts)
        self.calls.add(call)
        anchor = self.anchor if streamed else self.anchor.detach()
        outputs = _in_graph(call, self.inputs, anchor, casts.values())
        if call.reads is not None and call.reads.most > call.slots and not arguments.changed:
            call.slots = call.reads.most
            outputs = _in_graph(call, self.inputs, anchor, casts.values())
        self.gradients.expect(self.block)
        self.gradients.casts.expect(call.cast_once, self.block.needs)
        if self.inputs is not None:
            self.inputs.leave(call)
        return call.finish(outputs)


def _in_graph(
    call: Call, inputs: Inputs | None, anchor: torch.Tensor, casts: Iterable[torch.Tensor]
) -> Any:
    """Return the call's outputs. They are connected to each input by an edge for each term."""
    slots = [one for one in (*call.shared, *call.inputs, *casts) for _ in range(call.slots)]
    return _Function.apply(call, inputs, anchor, *slots)  # type: ignore[no-untyped-call]  # torch leaves it so


def _both_ways(name: str) -> str:
    return (
        f"block {name!r} reads a parameter as its own and as an argument, so that the order of its "
        f"gradient's terms is lost; exclude the block, or set mode = 'graph'"
    )


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, inputs: Inputs | None, anchor: torch.Tensor, *tensors: torch.Tensor
    ) -> Any:
        del anchor, tensors  # passed only to connect the call to the graph
        ctx.call, ctx.inputs, ctx.name = call, inputs, call.unit.block.name
        ctx.set_materialize_grads(False)
        if call.came:  # the graph is made again, with more slots
            outputs = call.bare()
        else:
            with call.unit.using("forward"):
                outputs = forward(call)
        changed = [
            tensor for tensor, version, _ in call.arguments.passed if tensor._version != version
        ]
        ctx.mark_dirty(*changed)
        # What needs no gradient stays so: a mask that needs one has other attention kernels.
        ctx.mark_non_differentiable(
            *(
                output
                for output, came in zip(outputs, call.came, strict=True)
                if not came.requires_grad
            )
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        call, inputs = ctx.call, ctx.inputs
        ctx.call = ctx.inputs = None  # free the stored inputs after each block
        if call is None and ctx.twice:
            raise ModelError(_differentiated_twice(ctx.name))
        if call is None:
            msg = (
                f"block {ctx.name!r} is run backward a second time: its inputs are kept for one "
                f"backward only (retain_graph, or a tensor of the block's graph that another part "
                f"of the model holds on to); set mode = 'graph'"
            )
            raise ModelError(msg)
        ctx.twice = torch.is_grad_enabled()
        anchor, _ = ctx.next_functions[0]
        own_too = anchor is None or torch._C._will_engine_execute_node(anchor)
        with torch.no_grad():
            found = backward(call, inputs, gradients, own_too=own_too)
        return (None, None, None, *(_once(ctx.name, found) if ctx.twice else found))


class _Once(torch.autograd.Function):
    """Returns gradients that raise ModelError when they are differentiated.

    The error is also raised for gradients that depend on no tensor.
    """

    @staticmethod
    def forward(ctx: Any, name: str, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        raise ModelError(_differentiated_twice(ctx.name))


def _differentiated_twice(block: str) -> str:
    return (
        f"block {block!r} is differentiated twice (create_graph), which mode = 'recompute' does "
        f"not support; set mode = 'graph', or exclude the block"
    )


def _once(name: str, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    given = [one.detach().requires_grad_() for one in gradients if one is not None]
    guarded = iter(_Once.apply(name, *given))  # type: ignore[no-untyped-call]  # torch leaves it so
    return [None if one is None else next(guarded) for one in gradients]


def _nowhere(_: torch.Tensor) -> None:
    """Return None, which means that no earlier block has returned the tensor."""
