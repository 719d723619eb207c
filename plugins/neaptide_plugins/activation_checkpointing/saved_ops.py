"""Keeps the outputs of chosen ops in a forward, and uses these outputs in replays of the forward.

A replay runs the forward again, to recompute the dropped tensors. A forward may be replayed several
times. Only the chosen ops must be the same in a forward and in its replays. Unlike in torch's
selective checkpointing, other ops may differ. Autocast, for example, casts a shared weight once in
the forward, but again in each replay.
"""

from __future__ import annotations

from contextlib import nullcontext
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from neaptide_toolkit.recompute import ChangedInPlaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_FAMILIES = {"matmul": ("mm", "addmm", "bmm", "baddbmm"), "attention": _ATTENTION}
_UNTRACKED = {
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
}
"""Ops whose outputs share the input's memory, but not the input's version counter."""


def selective_contexts(save_ops: Sequence[str]) -> Callable[[], tuple[Any, Any]]:
    """Return a function that makes two contexts: one for a forward, and one for its replays.

    The first context keeps the outputs of `save_ops`. In the second context a call of one of these
    ops does not run the op, but returns the kept output. `matmul` and `attention` each stand for a
    family of ops; of attention, the output and the logarithms of its sums are kept. Any other name
    is the name of an aten op. Raises ValueError for an unknown op.
    """
    if not save_ops:
        return lambda: (nullcontext(), nullcontext())
    return partial(_contexts, {overload for name in save_ops for overload in _overloads(name)})


def _contexts(ops: set[Any]) -> tuple[Any, Any]:
    keep = _Keep(ops)
    return keep, _GiveBack(ops, keep.kept)


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Keeps the results of the chosen ops in the order of their calls."""

    def __init__(self, ops: set[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.kept: list[tuple[Any, list[int]]] = []
        self._ops = ops

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = op(*args, **(kwargs or {}))
        if op in _UNTRACKED and self._holds(args[0]):
            msg = (
                f"save_ops cannot detect in-place changes of a kept output through {op}, which "
                f"recurrent cells use; exclude the block from activation checkpointing, or remove "
                f"save_ops"
            )
            raise ChangedInPlaceError(msg)
        if op in self._ops:
            self.kept.append((_detached(returned), _versions(returned)))
        return returned

    def _holds(self, tensor: torch.Tensor) -> bool:
        leaves = (leaf for returned, _ in self.kept for leaf in tree_leaves(returned))
        storages = {leaf.untyped_storage()._cdata for leaf in leaves if torch.is_tensor(leaf)}
        return tensor.untyped_storage()._cdata in storages


class _GiveBack(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Returns the kept results instead of running the chosen ops."""

    def __init__(self, ops: set[Any], kept: list[tuple[Any, list[int]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._ops, self._kept, self._next = ops, kept, 0

    def __enter__(self) -> Any:
        self._next = 0
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op not in self._ops or self._next == len(self._kept):
            return op(*args, **(kwargs or {}))
        kept, versions = self._kept[self._next]
        self._next += 1
        if _versions(kept) != versions:
            msg = f"an output of {op}, one of save_ops, was changed in place"
            raise ChangedInPlaceError(msg)
        return _detached(kept)


def _detached(value: Any) -> Any:
    # If ADInplaceOrView were excluded, `detach` would give the tensor a new version counter.
    exclude = torch._C._SetExcludeDispatchKeyGuard
    with exclude(torch._C.DispatchKey.ADInplaceOrView, False):
        return tree_map_only(torch.Tensor, torch.Tensor.detach, value)


def _versions(value: Any) -> list[int]:
    return [leaf._version for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _overloads(name: str) -> list[Any]:
    found = []
    for op in _FAMILIES.get(name, (name.removeprefix("aten."),)):
        packet = getattr(torch.ops.aten, op, None) if op.isidentifier() else None
        if packet is not None:
            found += [getattr(packet, overload) for overload in packet.overloads()]
    if name == "attention":
        from neaptide_kernels.attention.op import attention  # noqa: PLC0415 - others need no op

        found.append(attention.overload)
    if not found:
        known = [*_FAMILIES, *(f"aten.{op}" for op in dir(torch.ops.aten))]
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        msg = f"there is no op {name!r}{hint}; use matmul, attention or a name such as aten.mm"
        raise ValueError(msg)
    return found
