"""The provider `triton-tma` of attention, for GPUs with a tensor memory accelerator (TMA).

The kernels are those of `triton`. They get tensor descriptors instead of addresses, so that TMA
copies the blocks, and larger blocks fit in the registers. In some configs other warps copy than
compute (warp specialization).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.attention.call import AttentionCall, AttentionGradient
from neaptide_kernels.attention.torch_backends import plain_call
from neaptide_kernels.registry import takes

from . import launching, tuning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide_kernels.registry import Query, Support

STAGES = 2
"""Blocks in flight; with more, launches for some GPUs spill registers."""
KEY_ROWS, KEY_WARPS = 32, 8
"""Queries of a block, and warps, of the gradients of keys and values."""
_HOPPER, _BLACKWELL = 9, 10
_SMALLEST, _LARGEST = 64, 128
"""Elements of a head; smaller blocks spill registers on some GPUs."""
_EIGHT = 8
_FORWARD: dict[int, tuple[Mapping[str, Any], ...]] = {
    _HOPPER: (
        {"rows": 128, "columns": 64, "num_warps": 8, "roles": False},
        {"rows": 128, "columns": 128, "num_warps": 8, "roles": False},
        {"rows": 64, "columns": 64, "num_warps": 4, "roles": True},
    ),
    _BLACKWELL: (
        {"rows": 128, "columns": 64, "num_warps": 8, "roles": True},
        {"rows": 128, "columns": 128, "num_warps": 8, "roles": True},
        {"rows": 128, "columns": 128, "num_warps": 8, "roles": False},
    ),
}
"""By the major compute capability. On Hopper, Triton 3.6 and 3.7 ignore `roles` at 8 warps; at 4
warps, 3.7 fails with blocks of more than 64 queries."""
_BACKWARD: dict[int, tuple[Mapping[str, Any], ...]] = {
    major: tuple(
        {"rows": rows, "columns": 64, "num_warps": warps, "key_columns": columns}
        for rows, warps in ((128, 8), (64, 4))
    )
    for major, columns in ((_HOPPER, 64), (_BLACKWELL, 32))
}


def supports(query: Query) -> Support:
    """Return whether the kernels support a call, or why not."""
    answer = tuning.supports(query)
    if answer is not True:
        return answer
    if torch.version.hip is not None or (
        query.capability is not None and query.capability[0] not in _FORWARD
    ):
        return "tensor descriptors are used on NVIDIA's GPUs of capability 9 and 10"
    if query["query"].dtype not in (torch.float16, torch.bfloat16):
        return f"{query['query'].dtype} is left to others"
    if plain_call(query) is not True:
        return "a window, ranges, a softcap, dropout or values of another size is left to others"
    size = query["query"].shape[3]
    if not _SMALLEST <= size <= _LARGEST or size % _EIGHT:
        sizes = f"{_SMALLEST}, {_SMALLEST + _EIGHT}, ... {_LARGEST}"
        return f"a head without {sizes} elements is left to others"
    return True


def configs(query: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate sizes of blocks of a forward or a backward."""
    known = _FORWARD if query.op == "attention" else _BACKWARD
    return known[_HOPPER if query.capability is None else query.capability[0]]


@takes(AttentionCall)
def attention(
    call: AttentionCall,
    *,
    rows: int = 128,
    columns: int = 64,
    num_warps: int = 8,
    roles: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `attention` in one launch."""
    return launching.forward(
        call, rows=rows, columns=columns, num_warps=num_warps, num_stages=STAGES, described=True,
        roles=roles,
    )  # fmt: skip


@takes(AttentionGradient)
def attention_backward(
    of: AttentionGradient,
    *,
    rows: int = 128,
    columns: int = 64,
    num_warps: int = 8,
    key_columns: int = 32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `attention_backward` in two launches."""
    return launching.backward(
        of, rows=rows, columns=columns, num_warps=num_warps, num_stages=STAGES, key_rows=KEY_ROWS,
        key_columns=key_columns, key_warps=KEY_WARPS, key_stages=STAGES, described=True,
    )  # fmt: skip


def launches() -> Mapping[int, tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]]:
    """Return the configs of forward and backward by the compute capability times ten."""
    return {10 * major: (_FORWARD[major], _BACKWARD[major]) for major in _FORWARD}
