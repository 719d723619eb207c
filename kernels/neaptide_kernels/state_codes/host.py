"""Updates of weights and 8-bit state on a CPU, compiled by Numba: every element is read once.

Each step computes what the op's reference does, in the same order and without fused operations. All
numbers are float32 or uint32; Numba would make 64 bits of them, so each result is converted. Loops
go over slices of a block: Numba makes no wide loops over arrays from a place on. There are two for
a block, because its new scales are known after the first: more loops take longer.

The arguments of a step are, in this order: weights, codes, scales and gradients as flat arrays,
where bfloat16 comes as uint16; the three numbers of a `Stream`; the position in the stream; the
factors of the op; and the range of blocks to update.
"""

from __future__ import annotations

import numpy as np

from neaptide_kernels import counter_random
from neaptide_kernels.compiling import inner, step

from . import (
    BLOCK,
    SIGNED,
    SIGNED_LEAST,
    SIGNED_TOP,
    THIRD,
    UNSIGNED,
    UNSIGNED_LEAST,
    UNSIGNED_TOP,
)

_f32, _u32 = np.float32, np.uint32

_FIRST, _SECOND, _GOLDEN, _THIRD = map(
    _u32, (counter_random.FIRST, counter_random.SECOND, counter_random.GOLDEN, THIRD)
)
_ABOVE_SIGNED, _ABOVE_UNSIGNED = _f32(SIGNED - 1), _f32(UNSIGNED - 1)
_SIGNED_TOP, _UNSIGNED_TOP = _f32(SIGNED_TOP), _f32(UNSIGNED_TOP)
_SIGNED_LEAST, _UNSIGNED_LEAST = _f32(SIGNED_LEAST), _f32(UNSIGNED_LEAST)
_ZERO, _HALF, _ONE, _TWO = map(_f32, (0, 0.5, 1, 2))
_PART, _MIDDLE = _f32(2.0**-16), _f32(2.0**-17)
_TO_INTEGER = _f32(1.5 * 2**23)
"""A float32 below 2**22 becomes a whole number if this is added and subtracted."""
_INF, _NAN = _f32(np.inf), _f32(np.nan)
_UPPER, _LOWER, _SIGN, _MAGNITUDE = map(_u32, (16, 0xFFFF, 31, 0x7FFFFFFF))
_EXPONENT, _BF16_NAN = _u32(0x7F800000), np.uint16(0x7FC0)


@inner
def _position(position, second):
    """Return what a block has of `Stream.bits`; a block does not cross a multiple of 2**32."""
    upper = _u32(_u32(_u32(position >> 32) * _GOLDEN) + second)
    return upper, _u32(position & 0xFFFFFFFF)


@inner
def _bits(i, lower, upper, first, turned):
    """Return the bits of `Stream.bits` for an element whose position is `lower + i`."""
    mixed = _u32(_u32(lower + _u32(i)) ^ first)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) * _FIRST)
    mixed = _u32(mixed ^ upper)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(15))) * _SECOND)
    return _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) + turned)


@inner
def _number(source, i):
    """Return a number of an array of float32, or of bfloat16 as uint16."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        return _u32(_u32(source[i]) << _UPPER).view(_f32)
    return _f32(source[i])


@inner
def _store(target, i, value, bits):
    """Store a number as `stored` does."""
    if target.itemsize == 2:  # noqa: PLR2004 - bytes
        raw = _f32(value).view(_u32)
        rounded = _u32(raw + _u32(_u32(bits * _THIRD) >> _UPPER))
        if _u32(raw & _EXPONENT) == _EXPONENT:
            rounded = raw
        half = np.uint16(rounded >> _UPPER)
        target[i] = half if value == value else _BF16_NAN
    else:
        target[i] = value


@inner
def _scales(most, least, top):
    """Return the scale of a block and its inverse, as `_scales` of the reference does.

    `most` are the largest bits of the magnitudes: these have the order of the magnitudes, and NaN
    is the largest.
    """
    largest = _u32(most).view(_f32)
    if largest > _ZERO:
        largest = max(largest, least)
    if largest == _INF:
        largest = _NAN
    return largest / top, top / (_INF if largest == _ZERO else largest)


@inner
def _signed(value, inverse, bits):
    """Return the code of `encode_signed`."""
    scaled = _f32(abs(value) * inverse)
    lower = _f32(_f32(_f32(np.sqrt(scaled) - _HALF) + _TO_INTEGER) - _TO_INTEGER)
    lower = min(_ABOVE_SIGNED, lower)  # NaN, too
    fraction = _f32(_u32(bits >> _UPPER)) * _PART + _MIDDLE
    up = _ONE if fraction * (_TWO * lower + _ONE) < scaled - lower * lower else _ZERO
    code = np.int32(lower + up)
    return np.int8(-code if _f32(value).view(_u32) >> _SIGN else code)


@inner
def _unsigned(value, value_root, inverse, inverse_root, bits):
    """Return the code of `encode_unsigned`, given roots of the value and of the inverse scale."""
    scaled = value * inverse
    exact = np.sqrt(_f32(value_root * inverse_root))
    lower = _f32(_f32(_f32(exact - _HALF) + _TO_INTEGER) - _TO_INTEGER)
    lower = min(_ABOVE_UNSIGNED, lower)
    fraction = _f32(_u32(bits & _LOWER)) * _PART + _MIDDLE
    below = lower * lower
    above = (lower + _ONE) * (lower + _ONE)
    below = below * below
    above = above * above
    code = lower + (_ONE if fraction * (above - below) < scaled - below else _ZERO)
    return np.uint8(np.int32(max(_ONE if value > _ZERO else _ZERO, code)))


@step
def adam8bit_step(
    weights, means, squares, mean_scales, square_scales, gradients, first, second, turned, start,
    mean_factor, root_factor, kept, lr, beta1, beta2, eps, begin, end,
):  # fmt: skip
    """Update blocks as `neaptide_kernels.adam8bit.reference.piece` does, in place."""
    m, v, roots = np.empty(BLOCK, _f32), np.empty(BLOCK, _f32), np.empty(BLOCK, _f32)
    drawn = np.empty(BLOCK, _u32)
    new1, new2 = _f32(_ONE - beta1), _f32(_ONE - beta2)
    for block in range(begin, end):
        at = block * BLOCK
        upper, lower = _position(start + at, second)
        weight, gradient = weights[at : at + BLOCK], gradients[at : at + BLOCK]
        mean_codes, square_codes = means[at : at + BLOCK], squares[at : at + BLOCK]
        mean_scale, square_scale = mean_scales[block], square_scales[block]
        most_mean, most_square = _u32(0), _u32(0)
        for i in range(len(weight)):
            bits = _bits(i, lower, upper, first, turned)
            g = _number(gradient, i)
            code = _f32(mean_codes[i])
            mean = (code * abs(code)) * mean_scale * beta1 + g * new1
            code = _f32(square_codes[i])
            code = code * code
            square = (code * code) * square_scale * beta2 + (g * g) * new2
            root = np.sqrt(square)
            step_size = (mean * mean_factor) / (root * root_factor + eps) * lr
            _store(weight, i, _number(weight, i) * kept - step_size, bits)
            most_mean = max(most_mean, _u32(_f32(mean).view(_u32) & _MAGNITUDE))
            most_square = max(most_square, _u32(_f32(square).view(_u32) & _MAGNITUDE))
            m[i], v[i], roots[i], drawn[i] = mean, square, root, bits
        mean_scales[block], mean_inverse = _scales(most_mean, _SIGNED_LEAST, _SIGNED_TOP)
        square_scales[block], inverse = _scales(most_square, _UNSIGNED_LEAST, _UNSIGNED_TOP)
        inverse_root = _f32(np.sqrt(inverse))
        for i in range(len(weight)):
            mean_codes[i] = _signed(m[i], mean_inverse, drawn[i])
            square_codes[i] = _unsigned(v[i], roots[i], inverse, inverse_root, drawn[i])


@step
def lion8bit_step(
    weights, means, scales, gradients, first, second, turned, start, kept, lr, beta1, beta2,
    begin, end,
):  # fmt: skip
    """Update blocks as `neaptide_kernels.lion8bit.reference.piece` does, in place."""
    m, drawn = np.empty(BLOCK, _f32), np.empty(BLOCK, _u32)
    new1, new2 = _f32(_ONE - beta1), _f32(_ONE - beta2)
    for block in range(begin, end):
        at = block * BLOCK
        upper, lower = _position(start + at, second)
        weight, gradient = weights[at : at + BLOCK], gradients[at : at + BLOCK]
        mean_codes, scale = means[at : at + BLOCK], scales[block]
        most = _u32(0)
        for i in range(len(weight)):
            bits = _bits(i, lower, upper, first, turned)
            g = _number(gradient, i)
            code = _f32(mean_codes[i])
            mean = (code * abs(code)) * scale
            moved = mean * beta1 + g * new1
            sign = _ONE if moved > _ZERO else (-_ONE if moved < _ZERO else moved)
            _store(weight, i, _number(weight, i) * kept - sign * lr, bits)
            mean = mean * beta2 + g * new2
            most = max(most, _u32(_f32(mean).view(_u32) & _MAGNITUDE))
            m[i], drawn[i] = mean, bits
        scales[block], inverse = _scales(most, _SIGNED_LEAST, _SIGNED_TOP)
        for i in range(len(weight)):
            mean_codes[i] = _signed(m[i], inverse, drawn[i])
