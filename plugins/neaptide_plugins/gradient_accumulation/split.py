"""Splits a batch of any nesting along its samples."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch


def split(batch: Any, pieces: int) -> list[Any]:
    """Split `batch` into at most `pieces` parts along dim 0 of its tensors, in order.

    Every tensor, wherever it sits in dicts, lists and tuples, with as many rows as the first one is
    split; anything else is shared by the parts. Sizes differ by at most one, none is empty.
    Concatenated, the parts are the batch.
    """
    rows = _rows(batch)
    pieces = min(pieces, rows or 1)
    if pieces <= 1:
        return [batch]
    bounds = [rows * piece // pieces for piece in range(pieces + 1)]
    return [_part(batch, rows, start, stop) for start, stop in pairwise(bounds)]


def _rows(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.ndim else 0
    for child in _children(value):
        rows = _rows(child)
        if rows:
            return rows
    return 0


def _children(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return list(value.values()) if hasattr(value, "values") else []


def _part(value: Any, rows: int, start: int, stop: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[start:stop] if value.ndim and value.shape[0] == rows else value
    if isinstance(value, list | tuple):
        parts = [_part(item, rows, start, stop) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "keys") and hasattr(value, "__setitem__"):
        part = copy.copy(value)
        # transformers' BatchEncoding keeps its items one level down, where a copy shares them.
        if isinstance(getattr(part, "data", None), dict):
            part.data = dict(part.data)
        for key in list(value.keys()):
            part[key] = _part(value[key], rows, start, stop)
        return part
    return value
