"""Attention and dropout, which PyTorch composes on a CPU of more operations than on CUDA.

On CUDA, attention is one of three backends: flash, memory-efficient or math. Only the last one
holds the scores. Dropout keeps a mask of one byte an element.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .overriding import overridden

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_ATEN = torch.ops.aten
_COMPOSED = _ATEN.scaled_dot_product_attention.default
FUSED = _ATEN._scaled_dot_product_fused_attention_overrideable.default  # noqa: SLF001 - torch's own
FUSED_BACKWARD = _ATEN._scaled_dot_product_fused_attention_overrideable_backward.default  # noqa: SLF001
_MATH = _ATEN._scaled_dot_product_attention_math.default  # noqa: SLF001 - the name of the backend
_DROPOUT = _ATEN.dropout.default
_HALF = (torch.float16, torch.bfloat16)
_DIMENSIONS = 4
_CAUSAL = {FUSED: 5, FUSED_BACKWARD: 13}
"""The place of `is_causal` among the arguments."""


def backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    grouped: bool,
) -> str:
    """Return which backend PyTorch takes on CUDA: `flash`, `efficient` or `math`.

    The rules are those of `aten/native/transformers/cuda/sdp_utils.cpp` for compute capability 8.0
    and higher, without those for single sizes.
    """
    half = query.dtype in _HALF
    dense = all(one.stride(-1) == 1 for one in (query, key, value))
    if not (half or query.dtype is torch.float32) or query.ndim != _DIMENSIONS or not dense:
        return "math"
    if half and mask is None and query.shape[-1] == value.shape[-1]:
        return "flash"
    groups = grouped and query.shape[1] != key.shape[1]
    return "math" if groups or (mask is not None and causal) else "efficient"


def as_cuda_attends(
    is_unknown: Callable[[torch.Tensor], bool], note: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Within this context, attention and dropout on the CPU are those of CUDA.

    Args:
        is_unknown: returns whether the values of a tensor need not be computed. The CPU has no
            fused attention, so a query with values is computed as ever.
        note: called with the backend that attention takes.
    """

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        mask, more = attn_mask, {"scale": scale, "enable_gqa": enable_gqa}
        if not is_unknown(query):
            return _COMPOSED.decompose(query, key, value, mask, dropout_p, is_causal, **more)
        taken = backend(query, key, value, mask, causal=is_causal, grouped=enable_gqa)
        note(f"attention of {str(query.dtype).removeprefix('torch.')} takes the {taken} backend")
        if taken == "math":
            return _MATH(query, key, value, mask, dropout_p, is_causal, None, **more)[0]
        if mask is not None and mask.dtype is torch.bool:
            added = torch.zeros_like(mask, dtype=query.dtype)
            mask = added.masked_fill_(mask.logical_not(), -math.inf)
        return FUSED(query, key, value, mask, dropout_p, is_causal, scale=scale)[0]

    return overridden({_COMPOSED: attend, _DROPOUT: _drop}, "AutogradCPU")


def _drop(values: torch.Tensor, p: float, train: bool) -> Any:  # noqa: FBT001 - PyTorch's signature
    if train and 0 < p < 1 and values.numel():
        return torch.native_dropout(values, p, train)[0]
    return _DROPOUT.decompose(values, p, train)


def attended(
    _: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    *__: Any,
    **___: Any,
) -> Any:
    """Return what the fused forward makes, on meta: the output, a sum a row, and two numbers."""
    rows, heads, length, _width = query.shape
    sums = query.new_empty((rows, heads, length), dtype=torch.float32, device="meta")
    number = torch.empty((), dtype=torch.int64, device="meta")
    made = _like(query) if _is_flash(query, value, bias) else _by_token(query, value.shape[-1])
    return (made, sums, None, None, length, key.shape[-2], number, number.clone(), None), ""


def gradients(_: Any, __: torch.Tensor, *args: Any, **___: Any) -> Any:
    """Return what the fused backward makes, on meta: gradients of query, key, value and mask."""
    *given, mask, wanted = args[:5]
    flash = _is_flash(given[0], given[2], mask)
    made = [_like(one) if flash else _by_token(one, one.shape[-1]) for one in given]
    of_mask = mask.new_empty(mask.shape, device="meta") if wanted[3] else None
    return (*made, of_mask), ""


def flops(operation: Any, args: tuple[Any, ...]) -> float | None:
    """Return the floating-point operations of fused attention; None of another operation.

    Two products in the forward, five in the backward, and half of them if later keys are not seen.
    """
    if operation not in (FUSED, FUSED_BACKWARD):
        return None
    backward = operation is FUSED_BACKWARD
    query, key, value = args[1:4] if backward else args[:3]
    causal = args[_CAUSAL[operation]] if len(args) > _CAUSAL[operation] else False
    rows: int = query.numel() // query.shape[-1] * key.shape[-2]
    both: float = 2.0 * rows * (query.shape[-1] + value.shape[-1])
    return both * (2.5 if backward else 1) / (2 if causal else 1)


def _is_flash(query: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether fused attention is flash's. The other backend takes all else."""
    return query.dtype in _HALF and bias is None and query.shape[-1] == value.shape[-1]


def _like(model: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the order of the model's memory, as flash's outputs are."""
    return torch.empty_like(model, device="meta")


def _by_token(model: torch.Tensor, width: int) -> torch.Tensor:
    rows, heads, length = model.shape[:3]
    return torch.empty((rows, length, heads, width), dtype=model.dtype, device="meta").transpose(
        1, 2
    )
