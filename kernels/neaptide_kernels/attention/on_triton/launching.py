"""Launch the kernels of attention, on addresses or on tensor descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.attention.layout import like, new_logsumexp, new_output, packed
from neaptide_kernels.attention.scores import keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.attention.call import AttentionCall, AttentionGradient

_LEAST = 16
"""The least size of a side of a product, and the bytes to which TMA aligns rows."""


def forward(
    call: AttentionCall,
    *,
    rows: int,
    columns: int,
    num_warps: int,
    num_stages: int,
    described: bool = False,
    roles: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the logarithms of sums, by one launch.

    Args:
        call: the call.
        rows: queries of a program.
        columns: keys of a block.
        num_warps: warps of a program that compute.
        num_stages: blocks of keys in flight.
        described: pass tensor descriptors, so that the tensor memory accelerator copies.
        roles: let other warps copy than compute.
    """
    from . import kernel  # noqa: PLC0415 - it needs Triton

    output, logsumexp = new_output(call), new_logsumexp(call)
    if not output.numel():
        return output, logsumexp
    query, key, value = _given(call[:3], described=described)
    batch, heads, n, _ = query.shape
    kernel.attend[(_blocks(n, rows), heads, batch)](
        *_passed((query, rows), (key, columns), (value, columns), described=described),
        output, logsumexp, *_extras(call),
        *_strides(query, key, value, output), *_numbers(call),
        **_constants(call, described=described), ROWS=rows, COLUMNS=columns, ROLES=roles,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return output, logsumexp


def backward(
    of: AttentionGradient,
    *,
    rows: int,
    columns: int,
    num_warps: int,
    num_stages: int,
    key_rows: int,
    key_columns: int,
    key_warps: int,
    key_stages: int,
    described: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients, by two launches.

    The arguments of `forward` are those of the queries' gradients; those of the keys' and values'
    gradients begin with `key_`.
    """
    from . import kernel_backward  # noqa: PLC0415 - it needs Triton

    call = of.call
    query, key, value, gradient = _given((*call[:3], of.gradient), described=described)
    for_query, for_key, for_value = (torch.zeros_like(one) for one in (query, key, value))
    batch, heads, n, _ = query.shape
    if gradient.numel() and key.numel():
        through = (gradient.float() * of.output.float()).sum(-1).contiguous()
        sums = (of.logsumexp.contiguous(), through)
        constants = _constants(call, described=described)

        def tensors(rows: int, columns: int) -> list[Any]:
            sizes = ((query, rows), (key, columns), (value, columns), (gradient, rows))
            return _passed(*sizes, described=described)

        kernel_backward.differentiate_keys[
            (_blocks(key.shape[2], key_columns), key.shape[1], batch)
        ](
            *tensors(key_rows, key_columns), *sums, for_key, for_value, *_extras(call),
            *_strides(query, key, value, gradient, for_key, for_value), *_numbers(call),
            **constants, ROWS=key_rows, COLUMNS=key_columns, num_warps=key_warps,
            num_stages=key_stages,
        )  # fmt: skip
        kernel_backward.differentiate_queries[(_blocks(n, rows), heads, batch)](
            *tensors(rows, columns), *sums, for_query, *_extras(call),
            *_strides(query, key, value, gradient, for_query), *_numbers(call),
            **constants, ROWS=rows, COLUMNS=columns, num_warps=num_warps, num_stages=num_stages,
        )  # fmt: skip
    return like(for_query, call.query), like(for_key, call.key), like(for_value, call.value)


def _given(tensors: Sequence[torch.Tensor], *, described: bool) -> list[torch.Tensor]:
    return [aligned(packed(one)) if described else packed(one) for one in tensors]


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows begin at multiples of 16 bytes, as TMA needs it."""
    size = tensor.element_size()
    steps = [step * size for step in tensor.stride()[:-1]]
    fits = not tensor.data_ptr() % _LEAST and all(step and not step % _LEAST for step in steps)
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def _passed(*sizes: tuple[torch.Tensor, int], described: bool) -> list[Any]:
    """Return the tensors; or a descriptor of each, of blocks of so many of its rows."""
    if not described:
        return [tensor for tensor, _ in sizes]
    from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: PLC0415 - as above

    return [
        TensorDescriptor(
            tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, _side(tensor.shape[3])]
        )
        for tensor, rows in sizes
    ]


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
        min(call.window or 1, max(n, 1)),  # a larger one would not fit in 32 bits
    )


def _constants(call: AttentionCall, *, described: bool) -> dict[str, Any]:
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
        "DESCRIBED": described,
    }


def _side(size: int) -> int:
    return max(_LEAST, 1 << max(0, size - 1).bit_length())


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)
