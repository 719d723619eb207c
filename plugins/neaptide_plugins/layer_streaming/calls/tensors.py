"""Finds and replaces tensors in a module's arguments and results."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import attrs
import torch
from torch import nn

from neaptide_toolkit.recompute import attributes_of

_PLAIN = (
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

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
"""Frequent types among them: a look into this set takes a tenth of the time."""
_CONTAINERS = frozenset({tuple, list, dict})
"""Types whose objects have no attributes of their own."""


@attrs.define(eq=False)
class FoundTensors:
    """The distinct tensors in a nested structure, in the order of traversal."""

    tensors: list[torch.Tensor] = attrs.field(factory=list)
    _seen: dict[int, Any] = attrs.field(factory=dict)

    def look(self, value: Any) -> FoundTensors:
        """Add the tensors in `value`, in nested containers and in attributes; return self."""
        if type(value) in _ATOMS:
            return self
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.tensors.append(value)
        elif not isinstance(value, _PLAIN) and id(value) not in self._seen:
            self._seen[id(value)] = value  # keep `value` alive, so that its id is not reused
            for part in _parts(value):
                self.look(part)
        return self


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the distinct tensors in a result, often a single one."""
    return [value] if type(value) is torch.Tensor else FoundTensors().look(value).tensors


def _parts(value: Any) -> list[Any]:
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += value.values()
    elif isinstance(value, list | tuple):
        parts += value
    if type(value) not in _CONTAINERS:
        parts += attributes_of(value).values()
    return parts


def replaced(
    value: Any, others: dict[int, torch.Tensor], memo: dict[int, Any] | None = None
) -> Any:
    """Return `value` with its tensors replaced. `others` maps a tensor's id to the new tensor.

    Objects and mutable containers are changed in place. Tuples and named tuples are created anew.
    """
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        return others.get(id(value), value)
    if type(value) in _ATOMS or isinstance(value, _PLAIN):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, tuple):
        items = [replaced(item, others, memo) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    memo[id(value)] = value
    if isinstance(value, list):
        value[:] = [replaced(item, others, memo) for item in value]
    elif isinstance(value, dict):
        value.update(_changed(value, others, memo))
    own = {} if type(value) in _CONTAINERS else attributes_of(value)
    for name, other in _changed(own, others, memo).items():
        object.__setattr__(value, name, other)
    return value


def _changed(
    items: dict[Any, Any], others: dict[int, torch.Tensor], memo: dict[int, Any]
) -> dict[Any, Any]:
    new = {key: replaced(item, others, memo) for key, item in list(items.items())}
    return {key: other for key, other in new.items() if other is not items[key]}
