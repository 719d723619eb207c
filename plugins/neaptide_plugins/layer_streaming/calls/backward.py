"""The backward of a block.

It first recomputes the forward, with a graph, from the stored inputs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import Node

from neaptide.errors import ModelError
from neaptide_toolkit.recompute.repeated import repeated

from ..updates.casts import casts_of, withheld
from .call import tried
from .leaves import before_accumulation, passed, without_gradients
from .reads import edges_of, in_slots, watch_terms
from .split_probe import is_close, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call import Call
    from .inputs import Inputs
    from .reads import Edge

    _Terms = dict[int, list[torch.Tensor]]


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
    terms: _Terms = {}
    unit.check_weights(call.weights)
    unit.check_trained(call.trained)
    own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
    if inputs is not None:
        inputs.bring(call)
    leaves = [kept.leaf() for kept in call.kept]
    passed_on: dict[int, torch.Tensor] = {}
    asked: list[torch.Tensor] | None = None
    earlier: dict[nn.Parameter, torch.Tensor] = {}
    if own_too:
        unit.gradients.prepare(unit.block)
    else:
        asked = [*call.shared, *(leaf for leaf in leaves if leaf.requires_grad)]
    with without_gradients([*own, *call.shared]), unit.using("backward"):
        parameters = [*own, *call.shared]
        if own_too and call.batch is None:
            earlier = unit.gradients.earlier(unit.block, call.cast_once)
        while (
            failed := tried(
                partial(_backward, call, leaves, arrived, asked, earlier, terms, passed_on)
            )
        ) is not None:
            earlier = {}
            for tensor in (*parameters, *leaves):
                tensor.grad = None
            unit.gradients.forget_pieces(unit.block)
            call.split_more(failed, "backward")
            assert call.batch is not None, "split_more has set it"
            call.contexts = call.contexts[:1] * call.batch.count
            call.untracked = call.untracked[:1] * call.batch.count
        if own_too:
            unit.gradients.take(unit.block, earlier)
        else:
            unit.gradients.pass_over(unit.block)
        unit.gradients.casts.end(call.cast_once, unit.block.needs)
        shared = [parameter.grad for parameter in call.shared]
    if call.batch is not None:
        passed_on.clear()
        terms.clear()
    sums = [*shared, *(passed_on.get(i, leaf.grad) for i, leaf in enumerate(leaves))]
    slots = [
        in_slots(unit.block.name, terms.get(index, [total]), call.slots)
        for index, total in enumerate(sums)
    ]
    slots += [
        in_slots(unit.block.name, terms.get(len(sums) + place, []), call.slots)
        for place in range(len(call.lowered))
    ]
    return [one for slot in slots for one in slot]


def _backward(
    call: Call,
    leaves: list[torch.Tensor],
    arrived: list[torch.Tensor | None],
    asked: list[torch.Tensor] | None,
    earlier: dict[nn.Parameter, torch.Tensor],
    terms: _Terms,
    passed_on: dict[int, torch.Tensor],
) -> None:
    def run(piece: int) -> None:
        _backward_of(call, piece, leaves, arrived, asked, earlier, terms, passed_on)
        if call.batch is not None:
            call.unit.gradients.add_piece(call.unit.block)

    batch = call.batch
    repeated(run, batch.count if batch else 1, equal=batch is not None and batch.is_equal)


def _backward_of(
    call: Call,
    piece: int,
    leaves: list[torch.Tensor],
    arrived: list[torch.Tensor | None],
    asked: list[torch.Tensor] | None,
    earlier: dict[nn.Parameter, torch.Tensor],
    terms: _Terms,
    passed_on: dict[int, torch.Tensor],
) -> None:
    unit = call.unit
    with (
        torch.enable_grad(),
        call.contexts[piece].restored(),
        call.untracked[piece].restored(),
    ):
        whole = [passed(kept, leaf) for kept, leaf in zip(call.kept, leaves, strict=True)]
        inputs = whole if call.batch is None else call.batch.piece(whole, piece)
        memo = {id(kept): given for kept, given in zip(call.kept, inputs, strict=True)}
        args, kwargs = call.arguments.again([], memo)
        targets: list[torch.Tensor] = [*call.shared, *inputs]
        edges = edges_of(targets)
        _, outputs = call.run(args, kwargs, inputs)
    if len(outputs) != len(arrived) or not _as_before(call, outputs):
        msg = (
            f"block {unit.block.name!r} returned something else when recomputed (by a random "
            f"generator other than torch's, or untracked state); exclude it from layer "
            f"streaming, or set mode = 'graph'"
        )
        raise ModelError(msg)
    pairs: list[tuple[Any, torch.Tensor]] = [
        (output, _share(call, gradient, piece))
        for output, gradient in zip(outputs, arrived, strict=True)
        if gradient is not None and output.requires_grad
    ]
    terms.clear()
    if call.batch is None:
        found = _watch(call, edges, targets, outputs, pairs)
        terms.update(found)
        first = len(call.shared)
        single = {i: leaf for i, leaf in enumerate(leaves) if first + i not in found}
        before_accumulation(single, passed_on)
    casts, nodes, once = unit.gradients.casts, dict[nn.Parameter, Node](), call.cast_once
    if asked is None and call.batch is None and once is not None:
        nodes = casts_of(outputs, [one for owner in unit.block.needs for one in owner.parameters])
    again = casts.used_again(once, unit.block.needs)
    kept = withheld({one: node for one, node in nodes.items() if one in again})
    if pairs and earlier:
        with torch.enable_grad():
            # autograd runs the newest nodes first, so these are the first terms of the gradients.
            pairs += [(one.view_as(one), total) for one, total in earlier.items()]
    if pairs and once is not None:
        pairs += casts.first_terms(once, nodes)
    if pairs:
        torch.autograd.backward(
            [output for output, _ in pairs],
            [gradient for _, gradient in pairs],
            inputs=asked,
        )
    if once is not None:
        casts.added(once, nodes, kept)


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


def _watch(
    call: Call,
    edges: Sequence[Edge | None],
    targets: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> _Terms:
    """Return a dict that gets the terms of the tensors that the call reads repeatedly."""
    casts_found = casts_of(outputs, [targets[index] for index in call.lowered])
    lowered = {index: casts_found.get(targets[index]) for index in call.lowered}
    whole_graph = len(pairs) == sum(output.requires_grad for output in outputs)
    known = call.read_again(edges, outputs) if whole_graph and not lowered else None
    return watch_terms(edges, pairs, lowered, known)


def _share(call: Call, gradient: torch.Tensor, piece: int) -> torch.Tensor:
    return gradient if call.batch is None else call.batch.piece([gradient], piece)[0]
