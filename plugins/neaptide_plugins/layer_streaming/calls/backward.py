"""The backward of a block.

It first recomputes the forward, with a graph, from the stored inputs.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from .call import tried
from .leaves import before_accumulation, without_gradients
from .split_probe import is_close, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call import Call
    from .inputs import Inputs


def backward(
    call: Call,
    inputs: Inputs | None,
    gradients: Sequence[torch.Tensor | None],
    *,
    own_too: bool,
) -> list[torch.Tensor | None]:
    """Recompute the block with a graph, and return the gradients of shared parameters and inputs.

    With `own_too`, the gradients of the block's streamed parameters are computed and gathered,
    too. They are not needed when `torch.autograd.grad` is called for other tensors.
    """
    unit, arrived = call.unit, list(gradients)
    unit.check_weights(call.weights)
    own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
    if inputs is not None:
        inputs.bring(call)
    leaves = [kept.leaf() for kept in call.kept]
    passed_on = before_accumulation(leaves)
    asked: list[torch.Tensor] | None = None
    if own_too:
        unit.gradients.prepare(unit.block)
    else:
        asked = [*call.shared, *(leaf for leaf in leaves if leaf.requires_grad)]
    with without_gradients([*own, *call.shared]), unit.using("backward"):
        parameters = [*own, *call.shared]
        while (failed := tried(lambda: _backward(call, leaves, arrived, asked))) is not None:
            for tensor in (*parameters, *leaves):
                tensor.grad = None
            unit.gradients.forget_pieces(unit.block)
            call.split_more(failed, "backward")
            assert call.batch is not None, "split_more has set it"
            call.contexts = call.contexts[:1] * call.batch.count
            call.untracked = call.untracked[:1] * call.batch.count
        if own_too:
            unit.gradients.take(unit.block)
        else:
            unit.gradients.pass_over(unit.block)
        shared = [parameter.grad for parameter in call.shared]
    if call.batch is not None:
        passed_on.clear()
    return [*shared, *(passed_on.get(i, leaf.grad) for i, leaf in enumerate(leaves))]


def _backward(
    call: Call,
    leaves: list[torch.Tensor],
    arrived: list[torch.Tensor | None],
    asked: list[torch.Tensor] | None,
) -> None:
    for piece in range(1 if call.batch is None else call.batch.count):
        _backward_of(call, piece, leaves, arrived, asked)
        if call.batch is not None:
            call.unit.gradients.add_piece(call.unit.block)


def _backward_of(
    call: Call,
    piece: int,
    leaves: list[torch.Tensor],
    arrived: list[torch.Tensor | None],
    asked: list[torch.Tensor] | None,
) -> None:
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(call.contexts[piece].restored())
        stack.enter_context(call.untracked[piece].restored())
        # A leaf that requires grad cannot be changed in place, but its copy can.
        whole = [
            leaf.clone() if kept.copied else leaf
            for kept, leaf in zip(call.kept, leaves, strict=True)
        ]
        inputs = whole if call.batch is None else call.batch.piece(whole, piece)
        memo = {id(kept): given for kept, given in zip(call.kept, inputs, strict=True)}
        args, kwargs = call.arguments.again([], memo)
        _, outputs = call.run(args, kwargs, inputs)
    if len(outputs) != len(arrived) or not _as_before(call, outputs):
        msg = (
            f"block {call.unit.block.name!r} returned something else when recomputed (by a random "
            f"generator other than torch's, or untracked state); exclude it from layer "
            f"streaming, or set mode = 'graph'"
        )
        raise RuntimeError(msg)
    pairs = [
        (output, _share(call, gradient, piece))
        for output, gradient in zip(outputs, arrived, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward(
            [output for output, _ in pairs],
            [gradient for _, gradient in pairs],
            inputs=asked,
        )


def _as_before(call: Call, outputs: list[torch.Tensor]) -> bool:
    """Return True if a sample of the outputs is close to the sample that the forward stored.

    Also return True if the forward stored no sample, or if the batch is split.
    """
    if call.watched is None or call.batch is not None:
        return True
    return all(
        is_close(before, sampled(output))
        for before, output in zip(call.watched, outputs, strict=True)
    )


def _share(call: Call, gradient: torch.Tensor, piece: int) -> torch.Tensor:
    return gradient if call.batch is None else call.batch.piece([gradient], piece)[0]
