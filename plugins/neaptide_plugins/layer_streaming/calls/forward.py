"""The forward of a block without a graph. If memory runs out, the batch is split further."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from neaptide.errors import ModelError
from neaptide_toolkit.recompute import CallContext
from neaptide_toolkit.recompute.call_context import random_numbers
from neaptide_toolkit.recompute.repeated import repeated
from neaptide_toolkit.recompute.untracked_state import UntrackedState, learn_moves

from .call import WITHOUT_HOOKS, tried
from .graph_outside import GraphOutside
from .micro_batches import Batch, joined
from .reads import edges_of, reads_of
from .split_probe import probe, sampled, ways_out
from .tensors import FoundTensors, replaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call import Call

    _State = tuple[CallContext, UntrackedState]


def forward(call: Call) -> list[torch.Tensor]:
    """Run the block without keeping its graph; return its output tensors, detached.

    Gradients are enabled, so that code that checks `torch.is_grad_enabled()` runs as usual. If
    memory runs out, the number of pieces is doubled.
    """
    unit = call.unit
    call.whole = Batch.of(call.inputs, 1)
    if unit.micro_batches > 1:
        call.batch = Batch.of(call.inputs, unit.micro_batches)
        probe(call)
    unit.seen += 1
    # A later call may be the first to use a tensor from outside of the block, or a random
    # generator other than torch's. Therefore calls 1, 2, 4, 8 and so on are checked.
    looked_at = unit.seen.bit_count() == 1
    call.outside = GraphOutside(call.inputs) if looked_at else None
    edges = edges_of([*call.shared, *call.inputs])
    start = _now(call)
    before, untracked = start
    while (failed := tried(lambda: _forward(call, start))) is not None:
        before.set_random()
        untracked.bring_back()
        for entry in before.buffers.entries:
            if entry.copy is not None:
                entry.owner._buffers[entry.name] = entry.live.copy_(entry.copy)
                entry.version = entry.live._version
        call.contexts, call.untracked = [], []
        if unit.hooked and WITHOUT_HOOKS in failed and not call.arguments.changed:
            unit.hooked = False
        else:
            call.split_more(failed, "forward")
    call.drawn = random_numbers()
    learn_moves(call.untracked)
    unit.learn(call.arguments)
    for context in call.contexts:
        context.buffers.settle(unit.block.name)
    if call.batch is None:
        call.reads = reads_of(edges, call.came, call.nodes)
        unit.reads = max(unit.reads, call.reads.most)
    bare = call.bare()
    call.outside = None
    if looked_at:
        call.watched = [sampled(one) for one in bare]
    return bare


def _forward(call: Call, start: _State) -> None:
    unit = call.unit
    # An integer takes the place of a tensor that autograd would save. The hook does not hold the
    # call, as a tensor that the block keeps as an attribute holds the hook.
    not_kept = partial(_not_kept, unit.block.name)
    hooks = saved_tensors_hooks(id, not_kept) if unit.hooked else nullcontext()
    # In one thread the numbers of the graph's nodes rise, even if the block itself runs a backward.
    threads = (
        nullcontext() if call.outside is None else torch.autograd.set_multithreading_enabled(False)
    )
    with torch.enable_grad(), hooks, threads:
        if call.batch is None or call.batch.count == 1:
            call.batch = None
            _note(call, start)
            call.result, call.came = call.run(call.args, call.kwargs, call.inputs)
            _check(call, call.came)
            return
        results: list[Any] = []
        pieces = repeated(
            partial(_piece, call, call.batch, start, results),
            call.batch.count,
            equal=call.batch.is_equal,
        )
    call.result, call.came = joined(unit.block.name, results[0], pieces, call.batch)


def _piece(
    call: Call, batch: Batch, start: _State, results: list[Any], piece: int
) -> list[torch.Tensor]:
    """Run the block on a piece of the batch; return its tensors, and put its result in a list."""
    _note(call, start)
    inputs = batch.piece(call.inputs, piece)
    memo = {id(kept): given for kept, given in zip(call.kept, inputs, strict=True)}
    args, kwargs = call.arguments.again([], memo)
    result, came = call.run(args, kwargs, inputs)
    _check(call, came)
    _check_objects(call, (args, kwargs), inputs)
    bare = {id(one): one.detach().requires_grad_(one.requires_grad) for one in came}
    results.append(replaced(result, bare))
    return list(bare.values())


def _check(call: Call, came: list[torch.Tensor]) -> None:
    unit = call.unit
    if call.outside is not None:
        own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
        call.outside.check(unit.block.name, came, own, unit.residency.holds)
    if call.batch is not None and call.arguments.changed:
        msg = (
            f"block {unit.block.name!r} changes an input in place, which micro-batches do not "
            f"support; {ways_out(unit.block.name)}"
        )
        raise ModelError(msg)


def _check_objects(call: Call, passed: Any, inputs: Sequence[torch.Tensor]) -> None:
    known = {id(tensor) for tensor in inputs}
    if any(id(tensor) not in known for tensor in FoundTensors().look(passed).tensors):
        name = call.unit.block.name
        msg = (
            f"block {name!r} stores tensors in an argument (a cache), which micro-batches do not "
            f"support; {ways_out(name)}"
        )
        raise ModelError(msg)


def _now(call: Call) -> _State:
    context = CallContext.now(call.unit.buffers.before(), caches=call.caches)
    return context, UntrackedState.now(call.unit.buffers.parts.now())


def _note(call: Call, start: _State) -> None:
    """Remember in which state the next piece begins; the first piece begins in `start`."""
    context, untracked = _now(call) if call.contexts else start
    call.contexts.append(context)
    call.untracked.append(untracked)


def _not_kept(name: str, _: object) -> torch.Tensor:
    msg = (
        f"a tensor from inside block {name!r} is used outside without being "
        f"returned (by a hook, or as an attribute), so its graph is not kept; return it from the "
        f"block, or set mode = 'graph'"
    )
    raise ModelError(msg)
