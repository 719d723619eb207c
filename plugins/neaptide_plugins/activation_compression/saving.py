"""Stores tensors saved for the backward as int8, if the operation that saves them allows it.

When an operation saves a tensor, the graph does not contain the operation's node yet; only the
node's sequence number is known. So the tensor stays exact until a later tensor is saved. At that
time the graph contains the node, and the node's type decides how to encode the tensor. A tensor
whose node is never found stays exact.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import attrs
import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .layout import StridedLayout, layout_of
from .needs import EXACT, MASK, Need, NodeNeeds, of_a_leaf
from .saved_memory import ExactTensor, Saved, SavedMemory

_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_NO_NUMBER = 2**63
"""Sequence numbers from this value on belong to leaf nodes and show no order of creation."""


@attrs.define
class _Walk:
    """The visited nodes of one thread's graph. Every thread numbers its nodes separately."""

    first: int
    """Sequence number of the first node that saves a tensor."""
    seen: set[int] = attrs.field(factory=set)
    waiting: dict[int, list[weakref.ref[Saved]]] = attrs.field(factory=dict)
    """Maps the sequence number of a node to its saved tensors whose need is not known yet."""


@attrs.frozen
class SavedBytes:
    """Bytes of saved tensors. Parameters and casts of parameters are not counted."""

    exact: int = 0
    """Bytes without compression."""
    compressed: int = 0
    """Bytes with compression."""

    @property
    def share(self) -> float:
        """The share of the bytes that compression removes."""
        return 1 - self.compressed / self.exact if self.exact else 0.0


class Saving:
    """The tensors saved during one forward, or one backward.

    Args:
        ops: decides which tensors may be compressed.
        group: number of neighbouring elements that share a scale.
        min_elements: tensors with fewer elements stay exact.
    """

    def __init__(self, ops: NodeNeeds, *, group: int, min_elements: int) -> None:
        self._ops = ops
        self._group = group
        self._min_elements = min_elements
        self._memories: weakref.WeakValueDictionary[Any, SavedMemory] = (
            weakref.WeakValueDictionary()
        )
        self._walks: dict[int, _Walk] = {}
        self._others: dict[int, int] = {}

    def hooks(self) -> saved_tensors_hooks:
        """Return the context in which saved tensors are compressed."""
        return saved_tensors_hooks(self._pack, lambda held: held.unpack())

    def finish(self, result: torch.Tensor) -> None:
        """Encode the waiting tensors whose nodes are in the graph of `result`.

        All other waiting tensors stay exact.
        """
        walk = self._walks.get(threading.get_ident())
        if walk is not None and result.grad_fn is not None:
            self._look(walk, result.grad_fn)
        for other in self._walks.values():
            for saved in (each() for references in other.waiting.values() for each in references):
                if saved is not None:
                    saved.memory.settle(saved, EXACT)
        for memory in self._memories.values():
            memory.finish()
        self._walks.clear()

    def held(self) -> SavedBytes:
        """Return the bytes of all tensors that the graph holds now."""
        exact, compressed = dict(self._others), dict(self._others)
        codes = 0
        for memory in self._memories.values():
            exact[memory.storage.cdata] = memory.storage_bytes
            codes += memory.nbytes
            if memory.exact:
                compressed[memory.storage.cdata] = memory.storage_bytes
        return SavedBytes(sum(exact.values()), sum(compressed.values()) + codes)

    def _pack(self, tensor: torch.Tensor) -> ExactTensor | Saved:
        saver = _get_sequence_nr() - 1  # read before `grad_fn`, which may create a node
        node = tensor.grad_fn
        walk = self._walks.setdefault(threading.get_ident(), _Walk(saver))
        if node is not None:
            self._look(walk, node)
        layout = self._compressible(tensor, node)
        if layout is None:
            self._count(tensor, node)
            # A node that refers to its own result is a reference cycle, so the result is detached.
            return ExactTensor(tensor if node is None else tensor.detach(), tensor._version)
        memory = self._memory(tensor, layout)
        producer = None if node is None else node._sequence_nr()
        saved = Saved(memory, layout, producer, tensor.output_nr)
        memory.waiting += 1
        if tensor.dtype is torch.bool:
            memory.settle(saved, MASK)
        elif saved.producer == saver:
            memory.settle(saved, self._ops.need(node, output=tensor.output_nr))
        else:
            walk.waiting.setdefault(saver, []).append(weakref.ref(saved))
        return saved

    def _compressible(self, tensor: torch.Tensor, node: Any) -> StridedLayout | None:
        if (
            type(tensor) is not torch.Tensor
            or tensor.layout is not torch.strided
            or tensor.numel() < self._min_elements
            or tensor.is_neg()
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        ):
            return None
        if node is None:
            suited = tensor.dtype is torch.bool or (tensor.dtype in _DTYPES and tensor.is_cpu)
            suited = suited and not tensor.requires_grad and not _of_a_parameter(tensor)
        else:
            suited = tensor.dtype in _DTYPES and not of_a_leaf(node)
        return layout_of(tensor) if suited else None

    def _memory(self, tensor: torch.Tensor, layout: StridedLayout) -> SavedMemory:
        storage = tensor.untyped_storage()
        extent = tensor.numel() if layout.gapless else (layout.size, layout.stride)
        key = (storage._cdata, layout.offset, extent, tensor.dtype, tensor._version)
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = SavedMemory(
                tensor.detach(),
                tensor._version,
                StorageWeakRef(storage),  # type: ignore[no-untyped-call]  # torch leaves it untyped
                storage.nbytes(),
                self._group,
            )
        elif not memory.exact:
            memory.tensor.data = tensor.detach()  # the new `Saved` may need the exact values
            memory.exact = True
        return memory

    def _count(self, tensor: torch.Tensor, node: Any) -> None:
        weight = of_a_leaf(node) if node is not None else _of_a_parameter(tensor)
        if not weight and tensor.layout is torch.strided and type(tensor) is torch.Tensor:
            storage = tensor.untyped_storage()
            self._others[storage._cdata] = storage.nbytes()

    def _look(self, walk: _Walk, newest: Any) -> None:
        """Visit the unvisited nodes in the graph of `newest`; encode the tensors that they save."""
        nodes = [newest]
        while nodes:
            node = nodes.pop()
            number = node._sequence_nr()
            if not walk.first <= number < _NO_NUMBER or number in walk.seen:
                continue
            walk.seen.add(number)
            for reference in walk.waiting.pop(number, ()):
                saved = reference()
                if saved is not None:
                    saved.memory.settle(saved, self._need(node, saved))
            nodes += (other for other, _ in node.next_functions if other is not None)

    def _need(self, saver: Any, saved: Saved) -> Need:
        if saved.producer is None:
            return self._ops.need_of_constant(saver)
        for place, (node, output) in enumerate(saver.next_functions):
            if node is not None and (node._sequence_nr(), output) == (saved.producer, saved.output):
                return self._ops.need(saver, place=place)
        return EXACT


def _of_a_parameter(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or any(
        isinstance(each, torch.nn.Parameter) for each in (tensor, tensor._base)
    )
