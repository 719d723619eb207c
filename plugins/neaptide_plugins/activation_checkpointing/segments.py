"""Activation checkpointing in segments of blocks; loss, gradients, buffers and RNG state are exact.

As in torch's non-reentrant checkpoint, the forward builds the usual graph, but the tensors that the
graph's nodes save are dropped. When the backward needs the first dropped tensor of a segment, all
are recomputed. Unlike in torch, a segment can contain several block calls in the model's own code,
and the recomputation finds and leaves buffers and attributes as if there were only the forward.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from neaptide.errors import ModelError
from neaptide_toolkit.recompute import (
    Arguments,
    Buffers,
    CallContext,
    ChangedInPlaceError,
    Output,
    Patch,
    check_no_transform,
    eager,
    in_torchs_checkpoint,
    record,
)
from neaptide_toolkit.recompute.untracked_state import UntrackedState, learn_moves
from neaptide_toolkit.tensors import tensor_bytes

from .saved_ops import selective_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


class _Enough(BaseException):
    """Raised in a replay when all dropped tensors are recomputed, to end the replay."""


@attrs.define(eq=False)
class _CheckpointedBlock:
    """A patched block; `changes_inputs`: whether it changes inputs in place, None if unknown."""

    name: str
    index: int
    group: str
    patch: Patch
    buffers: Buffers
    changes_inputs: bool | None = None


@attrs.define(eq=False)
class _CheckpointedCall:
    block: _CheckpointedBlock
    arguments: Arguments
    context: CallContext
    untracked: UntrackedState
    again: Any
    """The context of a replay: the ops of `save_ops` return the outputs that the forward kept."""


@attrs.define(eq=False, slots=True)
class _Holder:
    segment: _Segment
    index: int


@attrs.define(eq=False)
class _Segment:
    """The calls of consecutive blocks in one forward. Only the autograd graph owns a segment."""

    key: tuple[str, int]
    last: int = -1
    calls: list[_CheckpointedCall] = attrs.field(factory=list)
    saved: list[tuple[torch.Size, torch.dtype]] = attrs.field(factory=list)
    values: dict[int, tuple[torch.Tensor, int]] = attrs.field(factory=dict)
    outputs: dict[int, tuple[Any, Output, int]] = attrs.field(factory=dict)

    def origin(self, tensor: torch.Tensor) -> Output | None:
        """Return the index of the call that returned `tensor`, and the index of its output.

        None if no call of this segment returned it, or if it was changed in place afterwards.
        """
        reference, output, version = self.outputs.get(id(tensor), (None, None, 0))
        if reference is None or reference() is not tensor or tensor._version != version:
            return None
        return output

    def unpack(self, index: int) -> torch.Tensor:
        if index not in self.values:
            self.replay()
        value, version = self.values.pop(index)
        if value._version != version:
            msg = "a tensor needed for the backward was changed in place by a later operation"
            raise ChangedInPlaceError(msg)
        return value

    def replay(self) -> None:
        """Run the block calls again and collect the tensors that the calls save."""
        seen = 0
        name = self.calls[0].block.name

        def catch(tensor: torch.Tensor) -> None:
            nonlocal seen
            if seen < len(self.saved):
                if (tensor.shape, tensor.dtype) != self.saved[seen]:
                    raise _differs(name)
                self.values[seen] = (tensor.detach(), tensor._version)
            seen += 1
            if seen == len(self.saved):
                raise _Enough

        outputs: list[list[Any]] = []
        try:
            for call in self.calls:
                name = call.block.name
                with torch.enable_grad(), call.context.restored(), call.untracked.restored():
                    args, kwargs = call.arguments.again(outputs)
                    with call.again, saved_tensors_hooks(catch, _never):
                        outputs.append(tree_leaves(call.block.patch.forward(*args, **kwargs)))
        except _Enough:
            return
        except ChangedInPlaceError as error:
            msg = f"activation checkpointing of block {name!r}: {error}; exclude the block"
            raise ChangedInPlaceError(msg) from None
        raise _differs(name)


class Segments:
    """Patches blocks so that they are checkpointed in segments.

    Args:
        interval: number of consecutive blocks in a segment; only the inputs of the first block are
            kept.
        ratio: share of the segments that are checkpointed, at least one segment. The checkpointed
            segments are evenly spread.
        save_ops: ops whose outputs are kept; see `saved_ops.selective_contexts`.
        enabled: called before each block call; returns whether to checkpoint this call.
    """

    def __init__(
        self,
        *,
        interval: int,
        ratio: float = 1.0,
        save_ops: Sequence[str] = (),
        enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        self.notes: list[str] = []
        """Warnings for the user, without repetitions."""
        self.dropped_bytes = 0
        """Bytes of activations dropped since `reset_statistics`."""
        self.kept_bytes = 0
        """Bytes of inputs kept since `reset_statistics`."""
        self._interval = interval
        self._ratio = ratio
        self._contexts = selective_contexts(save_ops)
        self._enabled = enabled
        self._blocks: list[_CheckpointedBlock] = []
        self._chosen: set[tuple[str, int]] = set()
        self._inside = False
        self._current: Callable[[], _Segment | None] = lambda: None

    def attach(self, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        """Patch the forwards of `blocks`. All blocks of a segment have the same parent module."""
        places: dict[str, int] = {}
        keys: list[tuple[str, int]] = []
        for name, module in blocks:
            group = name.rpartition(".")[0]
            index = places[group] = places.get(group, -1) + 1
            keys.append((group, index // self._interval))
            block = _CheckpointedBlock(name, index, group, Patch(module), Buffers(module))
            self._blocks.append(block)
        for block in self._blocks:
            block.patch.apply(partial(self.call, block))
        ordered = list(dict.fromkeys(keys))
        count = max(1, round(len(ordered) * self._ratio))
        self._chosen = {ordered[place * len(ordered) // count] for place in range(count)}

    def detach(self) -> None:
        """Restore every forward."""
        for block in self._blocks:
            block.patch.remove()
        self._blocks = []

    def reset_statistics(self) -> None:
        """Set the byte counts to 0."""
        self.dropped_bytes = self.kept_bytes = 0

    @eager
    def call(self, block: _CheckpointedBlock, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of `block` and drop the tensors that the forward saves."""
        key = (block.group, block.index // self._interval)
        if (
            self._inside
            or key not in self._chosen
            or not torch.is_grad_enabled()
            or not self._enabled()
            or in_torchs_checkpoint()
        ):
            return block.patch.forward(*args, **kwargs)
        check_no_transform(block.name, "activation-checkpointing")
        segment = self._current()
        if segment is None or segment.key != key or block.index <= segment.last:
            segment = _Segment(key)
        self._current = weakref.ref(segment)
        self._inside = True
        try:
            return self._recorded(segment, block, args, kwargs)
        except BaseException:
            self._current = lambda: None  # a call that failed cannot be replayed
            raise
        finally:
            self._inside = False

    def _recorded(
        self,
        segment: _Segment,
        block: _CheckpointedBlock,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        arguments, structured = record(
            args, kwargs, segment.origin, copied=block.changes_inputs is not False
        )
        if structured:
            note = (
                f"block {block.name!r} is called with an object it may change (a cache?), which is "
                f"kept until the backward; if the model has such a switch, pass use_cache=False"
            )
            self.notes += [note] if note not in self.notes else []
        forward_context, again = self._contexts()
        context = CallContext.now(block.buffers.before())
        untracked = UntrackedState.now(block.buffers.parts.now())
        call = _CheckpointedCall(block, arguments, context, untracked, again)
        index, seen = len(segment.calls), set[int]()
        segment.calls.append(call)
        segment.last = block.index
        with forward_context, saved_tensors_hooks(partial(self._drop, segment, seen), _take):
            returned = block.patch.forward(*args, **kwargs)
        learn_moves([untracked])
        self._learn(block, call)
        for leaf, value in enumerate(tree_leaves(returned)):
            if isinstance(value, torch.Tensor):
                entry = (weakref.ref(value), Output(index, leaf), value._version)
                segment.outputs[id(value)] = entry
        return returned

    def _drop(self, segment: _Segment, seen: set[int], tensor: torch.Tensor) -> _Holder:
        segment.saved.append((tensor.shape, tensor.dtype))
        if not isinstance(tensor, torch.nn.Parameter):
            plain = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)
            place = tensor.data_ptr() if plain else id(tensor)  # only plain tensors have an address
            if place not in seen:
                seen.add(place)
                self.dropped_bytes += tensor.nbytes if plain else tensor_bytes([tensor])
        return _Holder(segment, len(segment.saved) - 1)

    def _learn(self, block: _CheckpointedBlock, call: _CheckpointedCall) -> None:
        arguments = call.arguments
        if block.changes_inputs is None:
            block.changes_inputs = arguments.changed
            if not arguments.changed:
                arguments.share()
        elif arguments.changed and not block.changes_inputs:
            msg = (
                f"block {block.name!r} changes an input in place that its first call left "
                f"unchanged; exclude it from activation checkpointing"
            )
            raise ChangedInPlaceError(msg)
        self.kept_bytes += arguments.kept_bytes
        arguments.settle()
        call.context.buffers.settle(block.name)


def _take(holder: _Holder) -> torch.Tensor:
    return holder.segment.unpack(holder.index)


def _never(_: object) -> torch.Tensor:
    msg = "no backward runs through a replay's graph"
    raise AssertionError(msg)


def _differs(name: str) -> ModelError:
    return ModelError(
        f"block {name!r} saved different tensors when it was recomputed; exclude it from "
        f"activation checkpointing"
    )
