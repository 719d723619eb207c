"""Triton functions for optimizer state in 8 bits. A tile consists of whole blocks: `[blocks, 256]`.

A GPU converts between integers and floats at an eighth of the speed of additions. So codes are
converted through the bits of floats with a fixed exponent. The lower code of a value is computed
from an approximate root. If this code is one too low, the remainder is 1; if the code is one too
high, the remainder is 0. In both cases the value is rounded to the correct code.
"""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import keyed_bits, keys_at, narrow

from . import (
    SIGNED,
    SIGNED_LEAST,
    SIGNED_TOP,
    THIRD,
    TURN,
    UNSIGNED,
    UNSIGNED_LEAST,
    UNSIGNED_TOP,
    WINDOW,
)

_SIGNED: tl.constexpr = tl.constexpr(SIGNED - 1.0)
_SIGNED_TOP: tl.constexpr = tl.constexpr(SIGNED_TOP)
_SIGNED_LEAST: tl.constexpr = tl.constexpr(SIGNED_LEAST)
_UNSIGNED: tl.constexpr = tl.constexpr(UNSIGNED - 1.0)
_UNSIGNED_TOP: tl.constexpr = tl.constexpr(UNSIGNED_TOP)
_UNSIGNED_LEAST: tl.constexpr = tl.constexpr(UNSIGNED_LEAST)
_THIRD: tl.constexpr = tl.constexpr(THIRD)
_TURN: tl.constexpr = tl.constexpr(TURN)
_WINDOW: tl.constexpr = tl.constexpr(WINDOW)
_FRACTIONS: tl.constexpr = tl.constexpr(1.0 - 2.0**-17)
_TO_INTEGER: tl.constexpr = tl.constexpr(1.5 * 2**23)
_FROM_UNSIGNED: tl.constexpr = tl.constexpr(2.0**23)
_FROM_SIGNED: tl.constexpr = tl.constexpr(2.0**23 + 128.0)


@triton.jit
def random_bits(first_key, second_key, step, tensor, start, offsets):
    """Compute `random_bits` for a tile that begins at element `start` (int64).

    The keys are results of `counter_random.signed`.
    """
    step = step.to(tl.uint32)
    first, second = keys_at(first_key.to(tl.uint32), second_key.to(tl.uint32), step // _WINDOW)
    upper = (tensor.to(tl.uint32) << 8) + (start >> 32).to(tl.uint32)
    bits = keyed_bits(first, second, start.to(tl.uint32) + offsets.to(tl.uint32), upper)
    return bits + (step % _WINDOW) * _TURN


@triton.jit
def upper_fraction(bits):
    """Return the first result of `fractions`."""
    return (0x3F800000 | ((bits >> 16) << 7)).to(tl.float32, bitcast=True) - _FRACTIONS


@triton.jit
def lower_fraction(bits):
    """Return the second result of `fractions`."""
    return (0x3F800000 | ((bits & 0xFFFF) << 7)).to(tl.float32, bitcast=True) - _FRACTIONS


@triton.jit
def decode_signed(codes, scale):
    """Compute `decode_signed` for a tile; `scale` is `[blocks]`."""
    shifted = (codes.to(tl.uint8, bitcast=True) ^ 128).to(tl.uint32)
    code = (0x4B000000 | shifted).to(tl.float32, bitcast=True) - _FROM_SIGNED
    return (code * tl.abs(code)) * scale[:, None]


@triton.jit
def decode_unsigned(codes, scale):
    """Compute `decode_unsigned` for a tile; `scale` is `[blocks]`."""
    code = (0x4B000000 | codes.to(tl.uint32)).to(tl.float32, bitcast=True) - _FROM_UNSIGNED
    square = code * code
    return (square * square) * scale[:, None]


@triton.jit
def _scales(magnitudes, least, top):
    # Non-negative floats have the same order as their bits; the bits of NaN are the largest.
    largest = tl.max(magnitudes.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    largest = largest.to(tl.float32, bitcast=True)
    largest = tl.where(largest > 0, tl.maximum(largest, least, tl.PropagateNan.ALL), largest)
    largest = tl.where(largest == float("inf"), float("nan"), largest)
    tops = tl.zeros_like(largest) + top
    inverse = tl.div_rn(tops, tl.where(largest == 0, float("inf"), largest))
    return tl.div_rn(largest, tops), inverse


@triton.jit
def _below(codes, most):
    return tl.minimum(((codes - 0.5) + _TO_INTEGER) - _TO_INTEGER, most)


@triton.jit
def encode_signed(values, fraction):
    """Compute `encode_signed` for a tile; return int8 codes and scales `[blocks]`."""
    magnitudes = tl.abs(values)
    scale, inverse = _scales(magnitudes, _SIGNED_LEAST, _SIGNED_TOP)
    scaled = magnitudes * inverse[:, None]
    lower = _below(tl.sqrt(scaled), _SIGNED)
    up = fraction * (2 * lower + 1) < scaled - lower * lower
    code = tl.where(up, lower + 1, lower).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    code = code | (values.to(tl.int32, bitcast=True) & -0x80000000)
    code = (code.to(tl.float32, bitcast=True) + _TO_INTEGER).to(tl.int32, bitcast=True)
    return code.to(tl.int8), scale


@triton.jit
def encode_unsigned(values, roots, fraction):
    """Compute `encode_unsigned` for a tile, given the square roots of the tile's values.

    Return uint8 codes and scales `[blocks]`.
    """
    scale, inverse = _scales(values, _UNSIGNED_LEAST, _UNSIGNED_TOP)
    scaled = values * inverse[:, None]
    lower = _below(tl.sqrt(roots * tl.sqrt(inverse)[:, None]), _UNSIGNED)
    below = lower * lower
    below = below * below
    above = (lower + 1) * (lower + 1)
    above = above * above
    up = fraction * (above - below) < scaled - below
    code = tl.maximum(tl.where(up, lower + 1, lower), (values > 0).to(tl.float32))
    return (code + _TO_INTEGER).to(tl.int32, bitcast=True).to(tl.uint8), scale


@triton.jit
def rounded(values, bits, dtype: tl.constexpr):
    """Compute `stored`; `bits` are all 32 random bits of each value."""
    if dtype == tl.bfloat16:
        raw = values.to(tl.uint32, bitcast=True)
        raw = (raw + ((bits * _THIRD) >> 16)) & 0xFFFF0000
        finite = tl.abs(values) < float("inf")
        values = tl.where(finite, raw.to(tl.float32, bitcast=True), values)
    return narrow(values, dtype)


@triton.jit
def address(entry, dtype: tl.constexpr, alignment: tl.constexpr):
    """Load an address from a table of tensors; the address is a multiple of `alignment` bytes."""
    pointer = tl.load(entry).to(tl.pointer_type(dtype))
    return tl.multiple_of(pointer, alignment)


@triton.jit
def power(base, exponent):
    """Return `base ** exponent` in float64, for an int32 exponent of at least 0."""
    square = tl.full((), base, tl.float64)
    result = tl.full((), 1.0, tl.float64)
    while exponent > 0:
        result = tl.where((exponent & 1) == 1, result * square, result)
        square = square * square
        exponent = exponent >> 1
    return result


@triton.jit
def load(pointer, offsets, inside, WHOLE: tl.constexpr):
    """Load a tile.

    A whole tile is loaded without a mask, because a mask would prevent wide loads.
    """
    if WHOLE:
        return tl.load(pointer + offsets)
    return tl.load(pointer + offsets, mask=inside, other=0)


@triton.jit
def store(pointer, offsets, values, inside, WHOLE: tl.constexpr):
    """Store a tile; a whole tile needs no mask."""
    if WHOLE:
        tl.store(pointer + offsets, values)
    else:
        tl.store(pointer + offsets, values, mask=inside)
