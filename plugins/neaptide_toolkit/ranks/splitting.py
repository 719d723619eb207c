"""Splits a nested batch along its samples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from itertools import pairwise
from typing import Any

import torch


def rows(batch: Any) -> int | None:
    """Return the number of samples: the size of dim 0 of the first tensor with dimensions.

    None if no tensor has dimensions.
    """
    return _rows(_tensors(batch))


def split(batch: Any, pieces: int) -> list[Any]:
    """Split `batch` into at most `pieces` parts along dim 0 of its tensors, in order.

    Every tensor whose dim 0 equals `rows(batch)` is split into views, at any depth of mappings,
    lists, tuples, dataclasses and attrs classes. Each part has the structure of the batch.
    All parts share the other values of the batch. The sizes of the parts differ by at most one. No
    part is empty, so a batch with fewer than `pieces` samples gives fewer parts.
    """
    flat = type(batch) is tuple and all(map(torch.is_tensor, batch))  # the usual batch
    tensors = [*batch] if flat else _tensors(batch)
    length = _rows(tensors) or 0
    pieces = min(pieces, length)
    if pieces <= 1:
        return [batch]
    bounds = [length * piece // pieces for piece in range(pieces + 1)]
    sizes = [stop - start for start, stop in pairwise(bounds)]
    views = {
        id(tensor): tensor.split_with_sizes(sizes)
        for tensor in tensors
        if tensor.ndim and tensor.shape[0] == length
    }

    def part(piece: int) -> Any:
        def view(tensor: torch.Tensor) -> torch.Tensor:
            parts = views.get(id(tensor))
            return tensor if parts is None else parts[piece]

        return _mapped(batch, view)

    if flat:  # without recursion
        whole = (views.get(id(tensor)) or (tensor,) * pieces for tensor in tensors)
        return list(zip(*whole, strict=True))
    return list(map(part, range(pieces)))


def _rows(tensors: list[torch.Tensor]) -> int | None:
    return next((tensor.shape[0] for tensor in tensors if tensor.ndim), None)


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(tree, note)
    return found


def _mapped(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of `tree` in which `function` replaced each tensor, depth first."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, (list, tuple)):
        parts = [_mapped(item, function) for item in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        items = {key: _mapped(value, function) for key, value in tree.items()}
        return _with_items(tree, items)
    names = _field_names(tree)
    if not names:
        return tree
    copied = copy.copy(tree)
    for name in names:  # object's __setattr__ also works for frozen classes
        object.__setattr__(copied, name, _mapped(getattr(tree, name), function))
    return copied


def _with_items(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(mapping) is dict or not isinstance(mapping, MutableMapping):
        return items
    copied = copy.copy(mapping)  # keeps other attributes, such as those of a BatchEncoding
    copied.update(items)
    return copied


def _field_names(value: Any) -> list[str]:
    if isinstance(value, type):
        return []
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return [field.name for field in getattr(value, "__attrs_attrs__", ())]
