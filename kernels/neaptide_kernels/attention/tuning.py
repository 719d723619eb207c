"""Launch the kernels of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import takes
from neaptide_kernels.support import no_triton

from .call import AttentionCall, AttentionGradient
from .layout import like, new_logsumexp, new_output, packed
from .scores import keys_of
from .shipping import STAGES, shipped_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide_kernels.registry import Query, Support
    from neaptide_kernels.shipping import ShippedKernel

_LARGEST = {torch.float32: 32}
"""Elements of a head, at most, by dtype; larger float32 blocks would not fit in registers."""
_LARGEST_HALF = 256
_LEAST = 16
"""The least size of a side of a product."""
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"rows": 64, "columns": 32, "num_warps": 8, "key_rows": 32, "key_warps": 8},
    {"rows": 32, "columns": 32, "num_warps": 4, "key_rows": 32, "key_warps": 8},
)
"""Queries and keys of a block, and warps. `key_rows` and `key_warps` are those of the gradients of
keys and values, which need more registers."""
_WIDE: tuple[Mapping[str, Any], ...] = (
    {"rows": 32, "columns": 32, "num_warps": 4, "key_rows": 16, "key_warps": 8},
)
"""For heads of more than `_NARROW` elements."""
_EXACT: tuple[Mapping[str, Any], ...] = (
    {"rows": 32, "columns": 32, "num_warps": 8, "key_rows": 32, "key_warps": 4},
)
"""For float32."""
_NARROW = 128


def configs(query: Query) -> Sequence[Mapping[str, Any]]:
    """Return the candidate sizes of blocks and numbers of warps."""
    if query["query"].dtype == torch.float32:
        return _EXACT
    return _WIDE if _largest(query) > _NARROW else CONFIGS


def supports(query: Query) -> Support:
    """Return whether the kernels support a call, or why not."""
    reason = no_triton(query)
    if reason:
        return reason
    if query["query"].dtype == torch.float64:
        return "float64 is left to the reference"
    if query["bias"] is not None:
        return "a bias is left to others"
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
    from . import kernel  # noqa: PLC0415 - it needs Triton

    output, logsumexp = new_output(call), new_logsumexp(call)
    if not output.numel():
        return output, logsumexp
    query, key, value = map(packed, call[:3])
    batch, heads, n, _ = query.shape
    kernel.attend[(_blocks(n, rows), heads, batch)](
        query, key, value, output, logsumexp, *_extras(call),
        *_strides(query, key, value, output), *_numbers(call),
        **_constants(call), ROWS=rows, COLUMNS=columns, num_warps=num_warps,
        num_stages=STAGES["attend"],
    )  # fmt: skip
    return output, logsumexp


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
    from . import kernel_backward  # noqa: PLC0415 - it needs Triton

    call = of.call
    query, key, value = map(packed, call[:3])
    gradient = packed(of.gradient)
    for_query, for_key, for_value = (torch.zeros_like(one) for one in (query, key, value))
    batch, heads, n, _ = query.shape
    if gradient.numel() and key.numel():
        through = (gradient.float() * of.output.float()).sum(-1).contiguous()
        sums = (of.logsumexp.contiguous(), through)
        constants = {**_constants(call), "COLUMNS": columns}
        kernel_backward.differentiate_keys[
            (_blocks(key.shape[2], columns), key.shape[1], batch)
        ](
            query, key, value, gradient, *sums, for_key, for_value, *_extras(call),
            *_strides(query, key, value, gradient, for_key, for_value), *_numbers(call),
            **constants, ROWS=key_rows, num_warps=key_warps,
            num_stages=STAGES["differentiate_keys"],
        )  # fmt: skip
        kernel_backward.differentiate_queries[(_blocks(n, rows), heads, batch)](
            query, key, value, gradient, *sums, for_query, *_extras(call),
            *_strides(query, key, value, gradient, for_query), *_numbers(call),
            **constants, ROWS=rows, num_warps=num_warps,
            num_stages=STAGES["differentiate_queries"],
        )  # fmt: skip
    return like(for_query, call.query), like(for_key, call.key), like(for_value, call.value)


def _extras(call: AttentionCall) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the ranges and the two keys of the seed."""
    ranges = None if call.ranges is None else call.ranges.contiguous()
    return ranges, torch.stack(
        keys_of(call.seed)
    ) if call.dropout and call.seed is not None else None


def _strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(step for tensor in tensors for step in tensor.stride()[:3])


def _numbers(call: AttentionCall) -> tuple[int | float, ...]:
    heads, n = call.query.shape[1:3]
    return (
        heads,
        call.group,
        n,
        call.key.shape[2],
        call.factor,
        float(call.softcap or 1.0),
        float(call.dropout),
        call.window or 1,
    )


def _constants(call: AttentionCall) -> dict[str, Any]:
    d, d_value = call.query.shape[3], call.value.shape[3]
    return {
        "D": d,
        "D_VALUE": d_value,
        "BLOCK_D": _side(d),
        "BLOCK_D_VALUE": _side(d_value),
        "CAUSAL": call.causal,
        "WINDOW": call.window is not None,
        "RANGES": call.ranges is not None,
        "SOFTCAP": call.softcap is not None,
        "DROPOUT": bool(call.dropout),
        "EXACT": call.query.dtype == torch.float32,
    }


def _side(size: int) -> int:
    return max(_LEAST, 1 << max(0, size - 1).bit_length())


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def shipped() -> Iterator[ShippedKernel]:
    """Yield each config's launches for heads of common sizes."""
    return shipped_for(
        {
            ("bf16", 64): CONFIGS[:1],
            ("bf16", 128): CONFIGS,
            ("bf16", 256): _WIDE,
            ("fp32", 32): _EXACT,
        }
    )
