"""The provider `triton` of attention: which calls it supports, and its sizes of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.attention.call import AttentionCall, AttentionGradient
from neaptide_kernels.registry import takes
from neaptide_kernels.support import no_triton

from . import launching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide_kernels.registry import Query, Support

STAGES = {"attend": 3, "differentiate_keys": 3, "differentiate_queries": 2}
"""Blocks of each kernel's loop that are in flight; with others, some launches spill registers."""
_MOST = 65_535
"""Heads and sequences of a call: CUDA has no larger grids in these directions."""
_LARGEST = {torch.float32: 32}
"""Elements of a head, at most, by dtype; larger float32 blocks would not fit in registers."""
_LARGEST_HALF = 256
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"rows": 64, "columns": 32, "num_warps": 8, "key_rows": 32, "key_warps": 8},
    {"rows": 32, "columns": 32, "num_warps": 4, "key_rows": 32, "key_warps": 8},
)
"""Queries and keys of a block, and warps. `key_rows` and `key_warps` are those of the gradients of
keys and values, which need more registers."""
WIDE: tuple[Mapping[str, Any], ...] = (
    {"rows": 32, "columns": 32, "num_warps": 4, "key_rows": 16, "key_warps": 8},
)
"""For heads of more than `_NARROW` elements."""
EXACT: tuple[Mapping[str, Any], ...] = (
    {"rows": 32, "columns": 32, "num_warps": 8, "key_rows": 32, "key_warps": 4},
)
"""For float32."""
_NARROW = 128


def configs(query: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate sizes of blocks and numbers of warps."""
    if query["query"].dtype == torch.float32:
        return EXACT
    return WIDE if _largest(query) > _NARROW else CONFIGS


def supports(query: Query) -> Support:
    """Return whether the kernels support a call, or why not."""
    reason = no_triton(query)
    if reason:
        return reason
    if query["query"].dtype == torch.float64:
        return "float64 is left to the reference"
    if query["bias"] is not None:
        return "a bias is left to others"
    if max(query["query"].shape[:2]) > _MOST:
        return f"more than {_MOST} heads, or sequences, are left to others"
    dtype = query["query"].dtype
    limit = _LARGEST.get(dtype, _LARGEST_HALF)
    if _largest(query) > limit:
        return f"a head of more than {limit} elements of {dtype} is left to others"
    return True


def _largest(query: Query) -> int:
    return int(max(query["query"].shape[3], query["value"].shape[3]))


@takes(AttentionCall)
def attention(
    call: AttentionCall,
    *,
    rows: int = 64,
    columns: int = 32,
    num_warps: int = 8,
    key_rows: int = 32,  # noqa: ARG001 - of the backward
    key_warps: int = 8,  # noqa: ARG001 - of the backward
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `attention` in one launch."""
    return launching.forward(
        call, rows=rows, columns=columns, num_warps=num_warps, num_stages=STAGES["attend"]
    )


@takes(AttentionGradient)
def attention_backward(
    of: AttentionGradient,
    *,
    rows: int = 64,
    columns: int = 32,
    num_warps: int = 8,
    key_rows: int = 32,
    key_warps: int = 8,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `attention_backward` in two launches."""
    return launching.backward(
        of, rows=rows, columns=columns, num_warps=num_warps,
        num_stages=STAGES["differentiate_queries"], key_rows=key_rows, key_columns=columns,
        key_warps=key_warps, key_stages=STAGES["differentiate_keys"],
    )  # fmt: skip
