"""Finds the tensors of a batch, and replaces tensors in nested containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def batch_tensors(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors with a batch dimension in nested containers and dataclasses."""
    for child in batch if isinstance(batch, (list, tuple)) else _children(batch):
        if not isinstance(child, torch.Tensor):
            yield from batch_tensors(child)
        elif child.ndim:
            yield child


def batch_length(batch: object) -> int:
    """Return the number of samples: dim 0 of the first tensor in `batch`, or 1 without a tensor."""
    tensor = next(batch_tensors(batch), None)
    return 1 if tensor is None else tensor.shape[0]


def token_count(batch: Any) -> int | None:
    """Return the number of tokens in a batch, padding included; None without token ids.

    Token ids are whole numbers (int32, int64) of shape `[batch, sequence]`: the entry `input_ids`,
    or, in a batch without this entry, the first tensor.
    """
    named = batch.get("input_ids") if isinstance(batch, Mapping) else None
    ids = next(batch_tensors(batch), None) if named is None else named
    if not isinstance(ids, torch.Tensor) or ids.dtype not in {torch.int32, torch.int64}:
        return None
    return ids.numel() if ids.ndim == 2 else None  # noqa: PLR2004 - batch and sequence


def _children(batch: object) -> list[Any]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if hasattr(batch, "values"):
        return list(batch.values())
    cls: Any = type(batch)
    if attrs.has(cls):
        return [getattr(batch, field.name) for field in attrs.fields(cls)]
    return [getattr(batch, name) for name in getattr(batch, "__dataclass_fields__", ())]


def mapped(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested dicts, lists and tuples with each tensor replaced by `change(tensor)`."""
    if isinstance(tree, torch.Tensor):
        return change(tree.detach())
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree
