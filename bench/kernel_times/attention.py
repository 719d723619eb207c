"""Attention in torch and in other libraries, called with the arguments of Neaptide's ops."""

# ruff: noqa: FBT001, PLC0415 - `causal` is an argument of the op; FlexAttention is slow to import

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from .absent import Absent, module, on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    Attend = Callable[..., torch.Tensor]
    Build = Callable[..., Callable[[], object]]

_RESULTS = 3
"""Arguments of `attention_backward` before those of `attention`."""


def forward(attend: Attend) -> Build:
    """Return what builds the action of a forward from the arguments of the op `attention`."""

    def build(*arguments: Any) -> Callable[[], object]:
        query, key, value, *options = arguments
        call = _prepared(attend, query, *options)
        return lambda: call(query, key, value)

    return build


def backward(attend: Attend) -> Build:
    """Return what builds the action of a backward from those of `attention_backward`."""

    def build(*arguments: Any) -> Callable[[], object]:
        gradient = arguments[0]
        query, key, value, *options = arguments[_RESULTS:]
        leaves = [one.detach().requires_grad_() for one in (query, key, value)]
        output = _prepared(attend, query, *options)(*leaves)
        return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)

    return build


def _prepared(
    attend: Attend, query: torch.Tensor, bias: Any, ranges: Any, _seed: Any, causal: bool,
    window: Any, scale: Any, softcap: Any, dropout: float,
) -> Callable[..., torch.Tensor]:  # fmt: skip
    if bias is not None or window is not None or softcap is not None or scale or dropout:
        msg = "it is timed for causal calls and documents only"
        raise Absent(msg)
    return attend(query, causal, ranges)


def of_torch(_: torch.Tensor, causal: bool, ranges: torch.Tensor | None) -> Any:
    """Attention of torch, by the backend that torch chooses."""
    _no_documents(ranges)
    return lambda query, key, value: scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=True
    )


def flex(query: torch.Tensor, causal: bool, ranges: torch.Tensor | None) -> Any:
    """FlexAttention of torch, compiled."""
    on_gpu(query, "FlexAttention")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(batch: Any, _: Any, row: Any, column: Any) -> Any:
        visible = column <= row if causal else column >= 0
        if ranges is not None:
            visible = visible & (column >= ranges[batch, row, 0])
            visible = visible & (column < ranges[batch, row, 1])
        return visible

    n = query.shape[2]
    mask = create_block_mask(seen, query.shape[0], None, n, n, device=str(query.device))
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda query, key, value: compiled(query, key, value, block_mask=mask, enable_gqa=True)


def flash_attn(query: torch.Tensor, causal: bool, ranges: torch.Tensor | None) -> Any:
    """The package flash-attn."""
    function = module("flash_attn").flash_attn_func
    on_gpu(query, "flash-attn")
    _no_documents(ranges)
    return lambda *tensors: function(
        *(one.transpose(1, 2) for one in tensors), causal=causal
    ).transpose(1, 2)


def xformers(query: torch.Tensor, causal: bool, ranges: torch.Tensor | None) -> Any:
    """The package xformers; heads of the key are repeated."""
    ops = module("xformers.ops")
    on_gpu(query, "xformers")
    _no_documents(ranges)
    mask = ops.LowerTriangularMask() if causal else None

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(group, 1) for one in (key, value))
        tensors = (one.transpose(1, 2) for one in (query, key, value))
        output: torch.Tensor = ops.memory_efficient_attention(*tensors, attn_bias=mask)
        return output.transpose(1, 2)

    return call


def _no_documents(ranges: torch.Tensor | None) -> None:
    if ranges is not None:
        msg = "it takes no documents of this form"
        raise Absent(msg)


RIVALS = {"torch": of_torch, "FlexAttention": flex, "flash-attn": flash_attn, "xformers": xformers}
