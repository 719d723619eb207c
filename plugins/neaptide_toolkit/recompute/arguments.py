"""The arguments of a block's call, kept so that the call can be repeated exactly.

A block is a repeated module of the model. A segment is a group of successive blocks that are
recomputed together. If a tensor is an output of an earlier block of the segment, only a reference
to the output is kept, which needs no memory. Every other tensor is kept detached from its graph.
An object that the block may change, such as a key-value cache, is copied in structure: the copy
shares the object's tensors but not its lists.
"""

from __future__ import annotations

import copy
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import attrs
import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from neaptide.errors import ModelError
from neaptide.text import one_line

_IMMUTABLE_TYPES = (
    str
    | bytes
    | int
    | float
    | complex
    | None
    | type
    | torch.dtype
    | torch.device
    | torch.Size
    | torch.Generator
    | nn.Module
    | ModuleType
    | FunctionType
    | BuiltinFunctionType
    | MethodType
)


_ATOMS = frozenset({str, bytes, int, float, bool, type(None), torch.dtype, torch.device})


class ChangedInPlaceError(ModelError):
    """A kept tensor was changed in place after the block used it."""


@attrs.define(eq=False)
class KeptArgument:
    """A tensor argument, detached: a reference to its graph would keep the graph in memory."""

    tensor: torch.Tensor
    requires_grad: bool
    version: int
    copied: bool
    """True if the kept tensor is a copy, made before the call because the block may change its
    input."""
    is_leaf: bool = False
    """True if the tensor was a leaf of the graph, such as a parameter."""

    __repr__ = one_line

    @classmethod
    def of(cls, tensor: torch.Tensor, *, copied: bool) -> KeptArgument:
        """Return the kept form of `tensor`. If `copied`, this form is a copy."""
        held = tensor.detach().clone() if copied else tensor.detach()
        return cls(held, tensor.requires_grad, held._version, copied, tensor.is_leaf)

    def share(self, tensor: torch.Tensor) -> None:
        """Replace the copy by the original `tensor`, because the call did not change `tensor`."""
        self.tensor, self.copied = tensor.detach(), False
        self.version = self.tensor._version

    def leaf(self) -> torch.Tensor:
        """Return the values of the argument as a leaf of a new graph."""
        if self.tensor._version != self.version:
            msg = "an input was changed in place between its forward and backward"
            raise ChangedInPlaceError(msg)
        return self.tensor.detach().requires_grad_(self.requires_grad)

    def again(self) -> torch.Tensor:
        """Return the tensor to pass to the repeated call."""
        tensor = self.leaf()
        # A leaf that requires grad must not be changed in place; a clone of the leaf may.
        return tensor.clone() if self.copied else tensor


@attrs.frozen
class Output:
    """Reference to one tensor: leaf number `leaf` of the output of call `call` in the segment."""

    call: int
    leaf: int

    __repr__ = one_line


@attrs.frozen(eq=False)
class Structure:
    """A structural copy of an object that the block may change."""

    value: Any


@attrs.define(eq=False)
class Arguments:
    """One call's arguments, flattened."""

    leaves: list[Any]
    spec: TreeSpec | tuple[str, ...]
    """How the leaves are nested; the names of the last leaves if none is."""
    passed: list[tuple[torch.Tensor, int, KeptArgument | Output]] = attrs.field(factory=list)
    """During the call: each passed tensor, its version and its kept form."""

    __repr__ = one_line

    @property
    def is_plain(self) -> bool:
        """True if no argument is a container or an object: the call can store nothing in it."""
        return isinstance(self.spec, tuple)

    @property
    def changed(self) -> bool:
        """True if the call has changed one of its tensor arguments in place so far."""
        return any(tensor._version != version for tensor, version, _ in self.passed)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the kept tensors; valid until `settle`."""
        return sum(
            kept.tensor.nbytes for _, _, kept in self.passed if isinstance(kept, KeptArgument)
        )

    def share(self) -> None:
        """Free the copies, because the call changed nothing."""
        for tensor, _, kept in self.passed:
            if isinstance(kept, KeptArgument):
                kept.share(tensor)

    def settle(self) -> None:
        """Drop the references to the passed tensors after the call."""
        self.passed = []

    def again(
        self, outputs: list[list[Any]], memo: dict[int, torch.Tensor] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs for the repeated call.

        `outputs` has the flat outputs of the repeated calls so far. `memo` maps the `id` of a
        `KeptArgument` to the tensor that is passed in its place.
        """
        revive = partial(_revived, outputs=outputs, memo={} if memo is None else memo)
        values = [revive(leaf) for leaf in self.leaves]
        if isinstance(self.spec, tuple):
            first = len(values) - len(self.spec)
            return tuple(values[:first]), dict(zip(self.spec, values[first:], strict=True))
        args, kwargs = tree_unflatten(values, self.spec)
        return args, kwargs


def _revived(leaf: Any, outputs: list[list[Any]], memo: dict[int, Any]) -> Any:
    # Not a closure: a recursive closure is a reference cycle, which keeps its tensors alive.
    if isinstance(leaf, KeptArgument):
        if id(leaf) not in memo:
            memo[id(leaf)] = leaf.again()
        return memo[id(leaf)]
    if isinstance(leaf, Output):
        return outputs[leaf.call][leaf.leaf]
    if isinstance(leaf, Structure):
        return copy_structure(leaf.value, partial(_revived, outputs=outputs, memo=memo))
    return leaf


def record(
    args: tuple[Any, ...], kwargs: dict[str, Any], origin: Any, *, copied: bool
) -> tuple[Arguments, bool]:
    """Return a call's arguments, and True if one of them is an object that the block may change.

    `origin(tensor)` returns the tensor's `Output`, or None. If `copied`, copies of tensors are
    kept.
    """
    flat: list[Any] = [*args, *kwargs.values()]
    arguments = Arguments([], tuple(kwargs))
    if not all(type(one) in _ATOMS or isinstance(one, torch.Tensor) for one in flat):
        flat, arguments.spec = tree_flatten((args, kwargs))
    memo: dict[int, KeptArgument | Output] = {}
    structured = False

    def keep(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            kept = memo[id(leaf)] = origin(leaf) or KeptArgument.of(leaf, copied=copied)
            arguments.passed.append((leaf, leaf._version, kept))
        return memo[id(leaf)]

    for leaf in flat:
        if isinstance(leaf, torch.Tensor) or isinstance(leaf, _IMMUTABLE_TYPES):  # noqa: SIM101 - a new union takes long
            arguments.leaves.append(keep(leaf))
        else:
            structured = True
            arguments.leaves.append(Structure(copy_structure(leaf, keep)))
    return arguments, structured


def copy_structure(value: Any, leaf: Any, memo: dict[int, Any] | None = None) -> Any:
    """Copy containers and objects; replace each leaf x inside them by `leaf(x)`."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor | KeptArgument | Output | _IMMUTABLE_TYPES):
        return leaf(value)
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(copy_structure(item, leaf, memo) for item in value)
    copied = memo[id(value)] = copy.copy(value)
    if isinstance(copied, list):
        copied[:] = [copy_structure(item, leaf, memo) for item in value]
    elif isinstance(copied, dict):
        for key, item in value.items():
            copied[key] = copy_structure(item, leaf, memo)
    for name, item in attributes_of(value).items():
        object.__setattr__(copied, name, copy_structure(item, leaf, memo))
    return copied


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes, including those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found
