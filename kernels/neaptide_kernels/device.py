"""Triton functions shared by several kernels."""

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
    """Compute `counter_random.uniform` for a block of int64 positions."""
    upper = (positions >> 32).to(tl.uint32)
    bits = keyed_bits(
        first_key.to(tl.uint32), second_key.to(tl.uint32), positions.to(tl.uint32), upper
    )
    return (bits >> 8).to(tl.float32) * _TO_UNIT


@triton.jit
def keyed_bits(first_key, second_key, lower, upper):
    """Compute `counter_random.keyed_bits` for positions given as two uint32 halves."""
    bits = lower ^ first_key
    bits = (bits ^ (bits >> 16)) * _FIRST
    bits = bits ^ (upper * _GOLDEN + second_key)
    bits = (bits ^ (bits >> 15)) * _SECOND
    return bits ^ (bits >> 16)


@triton.jit
def keys_at(first_key, second_key, step):
    """Compute `counter_random.keys_at`; the keys and the step are uint32."""
    mixed = _finalized(step * _GOLDEN + first_key)
    return mixed, _finalized(mixed ^ second_key)


@triton.jit
def _finalized(bits):
    bits = (bits ^ (bits >> 16)) * _FIRST
    bits = (bits ^ (bits >> 15)) * _SECOND
    return bits ^ (bits >> 16)


@triton.jit
def round_half_even(x):
    """Round float32 numbers of magnitude below 2**22 as `torch.round` does.

    Triton's interpreter has no function for this. So a large number is added, which rounds the sum,
    and then subtracted. Launch with `enable_fp_fusion=False`. Otherwise the compiler may fuse the
    addition with a product that computes `x`, and this product is not rounded to float32 first.
    """
    return (x + _TO_INTEGER) - _TO_INTEGER


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """Convert float32 to the nearest number of `dtype`.

    In Triton's interpreter, a plain cast to bfloat16 truncates instead.
    """
    if _INTERPRETED and dtype == tl.bfloat16:
        bits = values.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(values == values, rounded, 0x7FC0)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return values.to(dtype)
