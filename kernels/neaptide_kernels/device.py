"""Pieces of Triton that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl

from .counter_random import FIRST, GOLDEN, SECOND

_FIRST: tl.constexpr = tl.constexpr(FIRST)
_SECOND: tl.constexpr = tl.constexpr(SECOND)
_GOLDEN: tl.constexpr = tl.constexpr(GOLDEN)
_TO_UNIT: tl.constexpr = tl.constexpr(2.0**-24)
_TO_INTEGER: tl.constexpr = tl.constexpr(1.5 * 2**23)
_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def uniform(first_key, second_key, positions):
    """`counter_random.uniform` for a block of int64 positions."""
    bits = positions.to(tl.uint32) ^ first_key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * _FIRST
    bits = bits ^ ((positions >> 32).to(tl.uint32) * _GOLDEN + second_key.to(tl.uint32))
    bits = (bits ^ (bits >> 15)) * _SECOND
    bits = bits ^ (bits >> 16)
    return (bits >> 8).to(tl.float32) * _TO_UNIT


@triton.jit
def round_half_even(x):
    """Round float32 of magnitude below 2**22, as `torch.round`; there is no rint to interpret.

    Launch with `enable_fp_fusion=False`: fused with a product before it, the sum rounds once.
    """
    return (x + _TO_INTEGER) - _TO_INTEGER


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """Convert float32 to `dtype`, to the nearest. The interpreter would truncate to bfloat16."""
    if _INTERPRETED and dtype == tl.bfloat16:
        bits = values.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(values == values, rounded, 0x7FC0)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return values.to(dtype)
