"""The masks of transformers as two numbers a query, where each query sees one range of keys.

transformers builds a mask of all pairs of queries and keys. Here it is built for some queries at a
time. Causal masks, sliding windows, padding, packed documents and chunks are ranges, in whatever
combination. So nothing need be known about the functions that describe a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import sdpa_mask

_ROWS = 128
"""Queries whose masks exist at the same time."""
_BOUNDS = 2


def mask_of(**given: Any) -> torch.Tensor | None:
    """Return the mask of a call of transformers' mask interface.

    None if `is_causal` says all. int32 `[batch, 1, n, 2]`, ranges of keys, if each query sees one
    range. Otherwise, for two keys, and while torch.compile traces, the bool mask of transformers,
    `[batch, 1, n, m]`.
    """
    # Custom functions and older transformers: no part of a mask can be asked for.
    if torch.compiler.is_compiling() or given.get("use_vmap") or "q_length" not in given:
        return _all_pairs(given)
    if _is_skipped(**given):
        return None
    if given["kv_length"] == _BOUNDS:
        return _all_pairs(given)
    n, offset = given["q_length"], given.get("q_offset", 0)
    whole = given | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    found = []
    for start in range(0, n, _ROWS):
        part = {"q_length": min(_ROWS, n - start), "q_offset": offset + start}
        found.append(ranges_of(sdpa_mask(**(whole | part))))
    ranges, are_ranges = (torch.cat(each, 1) for each in zip(*found, strict=True))
    if not bool(are_ranges.all()):
        return _all_pairs(whole)
    return ranges[:, None]


def ranges_of(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ranges of a mask `[batch, 1, n, m]`, and whether each row is one range.

    Returns:
        int32 `[batch, n, 2]`, the first key and the one after the last, and bool `[batch, n]`.
    """
    rows = mask[:, 0]
    number = rows.sum(-1)
    first = rows.to(torch.uint8).argmax(-1)
    last = rows.shape[-1] - rows.flip(-1).to(torch.uint8).argmax(-1)
    last = torch.where(number > 0, last, first)
    return torch.stack([first, last], -1).int(), number == last - first


def dense(ranges: torch.Tensor, keys: int) -> torch.Tensor:
    """Return the bool mask `[batch, 1, n, keys]` of ranges `[batch, 1, n, 2]`."""
    places = torch.arange(keys, device=ranges.device)
    return (places >= ranges[..., :1]) & (places < ranges[..., 1:])


def is_ranges(mask: torch.Tensor, keys: int) -> bool:
    """Return whether `mask_of` made these ranges.

    An int32 mask that a model was given has as many columns as there are keys, or one.
    """
    return mask.dtype == torch.int32 and mask.shape[-1] == _BOUNDS != keys


def _all_pairs(given: dict[str, Any]) -> torch.Tensor | None:
    mask: torch.Tensor | None = sdpa_mask(**given)
    return mask


def _is_skipped(
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,  # noqa: FBT001, FBT002 - transformers' names
    allow_is_bidirectional_skip: bool = False,  # noqa: FBT001, FBT002 - the same
    **_: Any,
) -> bool:
    """Return whether a plain causal mask, or none, is meant, as transformers decides it."""
    if not (allow_is_causal_skip or allow_is_bidirectional_skip):
        return False
    if local_size is not None and kv_length >= local_size:
        return False
    if allow_is_causal_skip and not allow_is_bidirectional_skip:
        alike = isinstance(q_offset, int) and q_offset == 0 and q_length == kv_length
        if not alike:
            return False
    return attention_mask is None or bool(attention_mask.all())
