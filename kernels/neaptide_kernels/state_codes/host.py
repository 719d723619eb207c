"""Updates of weights and 8-bit state on a CPU, compiled by Numba: every element is read once.

Each step computes what the op's reference does, in the same order and without fused operations. All
numbers are float32 or uint32; Numba would make 64 bits of them, so each result is converted. Loops
go over slices of a block: Numba makes no wide loops over arrays from a place on.

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
def _draw(bits, count, first, second, turned, position):
    """Fill `bits` as `Stream.bits` does. A block does not cross a multiple of 2**32."""
    upper = _u32(_u32(_u32(position >> 32) * _GOLDEN) + second)
    lower = _u32(position & 0xFFFFFFFF)
    for i in range(count):
        mixed = _u32(_u32(lower + _u32(i)) ^ first)
        mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) * _FIRST)
        mixed = _u32(mixed ^ upper)
        mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(15))) * _SECOND)
        bits[i] = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) + turned)


@inner
def _load(values, raw, source):
    """Load a block of float32, or of bfloat16 as uint16; `raw` is the memory of `values`."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        for i in range(len(source)):
            raw[i] = _u32(_u32(source[i]) << _UPPER)
    else:
        for i in range(len(source)):
            values[i] = source[i]


@inner
def _store(target, values, raw, bits):
    """Store a block as `stored` does."""
    if target.itemsize == 2:  # noqa: PLR2004 - bytes
        for i in range(len(target)):
            rounded = _u32(raw[i] + _u32(_u32(bits[i] * _THIRD) >> _UPPER))
            if _u32(raw[i] & _EXPONENT) == _EXPONENT:
                rounded = raw[i]
            half = np.uint16(rounded >> _UPPER)
            target[i] = half if values[i] == values[i] else _BF16_NAN
    else:
        for i in range(len(target)):
            target[i] = values[i]


@inner
def _scales(raw, word, least, top):
    """Return the scale of a block and its inverse, as `_scales` of the reference does.

    `raw` are the bits of the values: those of magnitudes have the order of the magnitudes, and NaN
    is the largest. `word` is a uint32 array of one number.
    """
    most = _u32(0)
    for i in range(BLOCK):
        most = max(most, _u32(raw[i] & _MAGNITUDE))
    word[0] = most
    largest = word.view(np.float32)[0]
    if largest > _ZERO:
        largest = max(largest, least)
    if largest == _INF:
        largest = _NAN
    return largest / top, top / (_INF if largest == _ZERO else largest)


@inner
def _encode_signed(codes, values, raw, inverse, bits):
    for i in range(len(codes)):
        scaled = _f32(abs(values[i]) * inverse)
        lower = _f32(_f32(_f32(np.sqrt(scaled) - _HALF) + _TO_INTEGER) - _TO_INTEGER)
        lower = min(_ABOVE_SIGNED, lower)  # NaN, too
        fraction = _f32(_u32(bits[i] >> _UPPER)) * _PART + _MIDDLE
        up = _ONE if fraction * (_TWO * lower + _ONE) < scaled - lower * lower else _ZERO
        code = np.int32(lower + up)
        codes[i] = np.int8(-code if raw[i] >> _SIGN else code)


@inner
def _encode_unsigned(codes, values, roots, inverse, bits):
    root = _f32(np.sqrt(inverse))
    for i in range(len(codes)):
        scaled = values[i] * inverse
        lower = _f32(_f32(_f32(np.sqrt(_f32(roots[i] * root)) - _HALF) + _TO_INTEGER) - _TO_INTEGER)
        lower = min(_ABOVE_UNSIGNED, lower)
        fraction = _f32(_u32(bits[i] & _LOWER)) * _PART + _MIDDLE
        below = lower * lower
        above = (lower + _ONE) * (lower + _ONE)
        below = below * below
        above = above * above
        code = lower + (_ONE if fraction * (above - below) < scaled - below else _ZERO)
        least = _ONE if values[i] > _ZERO else _ZERO
        codes[i] = np.uint8(np.int32(max(least, code)))


@step
def adam8bit_step(
    weights, means, squares, mean_scales, square_scales, gradients, first, second, turned, start,
    mean_factor, root_factor, kept, lr, beta1, beta2, eps, begin, end,
):  # fmt: skip
    """Update blocks as `neaptide_kernels.adam8bit.reference.piece` does, in place."""
    w, g, m = np.empty(BLOCK, _f32), np.empty(BLOCK, _f32), np.zeros(BLOCK, _f32)
    v, roots = np.zeros(BLOCK, _f32), np.empty(BLOCK, _f32)
    bits, word = np.empty(BLOCK, _u32), np.empty(1, _u32)
    w_raw, g_raw, m_raw, v_raw = w.view(_u32), g.view(_u32), m.view(_u32), v.view(_u32)
    new1, new2 = _f32(_ONE - beta1), _f32(_ONE - beta2)
    for block in range(begin, end):
        at = block * BLOCK
        count = min(BLOCK, len(weights) - at)
        m[count:] = _ZERO
        v[count:] = _ZERO
        _draw(bits, count, first, second, turned, start + at)
        _load(g, g_raw, gradients[at : at + BLOCK])
        target = weights[at : at + BLOCK]
        _load(w, w_raw, target)
        mean_codes, square_codes = means[at : at + BLOCK], squares[at : at + BLOCK]
        mean_scale, square_scale = mean_scales[block], square_scales[block]
        for i in range(count):
            code = _f32(mean_codes[i])
            m[i] = (code * abs(code)) * mean_scale * beta1 + g[i] * new1
        for i in range(count):
            code = _f32(square_codes[i])
            code = code * code
            v[i] = (code * code) * square_scale * beta2 + (g[i] * g[i]) * new2
        for i in range(count):
            roots[i] = np.sqrt(v[i])
        for i in range(count):
            w[i] = w[i] * kept - (m[i] * mean_factor) / (roots[i] * root_factor + eps) * lr
        _store(target, w, w_raw, bits)
        mean_scales[block], inverse = _scales(m_raw, word, _SIGNED_LEAST, _SIGNED_TOP)
        _encode_signed(mean_codes, m, m_raw, inverse, bits)
        square_scales[block], inverse = _scales(v_raw, word, _UNSIGNED_LEAST, _UNSIGNED_TOP)
        _encode_unsigned(square_codes, v, roots, inverse, bits)


@step
def lion8bit_step(
    weights, means, scales, gradients, first, second, turned, start, kept, lr, beta1, beta2,
    begin, end,
):  # fmt: skip
    """Update blocks as `neaptide_kernels.lion8bit.reference.piece` does, in place."""
    w, g, m = np.empty(BLOCK, _f32), np.empty(BLOCK, _f32), np.zeros(BLOCK, _f32)
    bits, word = np.empty(BLOCK, _u32), np.empty(1, _u32)
    w_raw, g_raw, m_raw = w.view(_u32), g.view(_u32), m.view(_u32)
    new1, new2 = _f32(_ONE - beta1), _f32(_ONE - beta2)
    for block in range(begin, end):
        at = block * BLOCK
        count = min(BLOCK, len(weights) - at)
        m[count:] = _ZERO
        _draw(bits, count, first, second, turned, start + at)
        _load(g, g_raw, gradients[at : at + BLOCK])
        target = weights[at : at + BLOCK]
        _load(w, w_raw, target)
        mean_codes = means[at : at + BLOCK]
        scale = scales[block]
        for i in range(count):
            code = _f32(mean_codes[i])
            mean = (code * abs(code)) * scale
            moved = mean * beta1 + g[i] * new1
            sign = _ONE if moved > _ZERO else (-_ONE if moved < _ZERO else moved)
            w[i] = w[i] * kept - sign * lr
            m[i] = mean * beta2 + g[i] * new2
        _store(target, w, w_raw, bits)
        scales[block], inverse = _scales(m_raw, word, _SIGNED_LEAST, _SIGNED_TOP)
        _encode_signed(mean_codes, m, m_raw, inverse, bits)
