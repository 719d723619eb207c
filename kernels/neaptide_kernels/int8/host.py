"""Int8 codes of groups on a CPU, compiled by Numba.

Each step computes what the op's reference does, to the bit and without fused operations. All
numbers are float32, int32 or uint32; Numba would make 64 bits of them, so each result is converted.
Extremes are compared as whole numbers of the same order, which is a wide loop for every input.
Loops go over slices: Numba makes no wide loops over arrays from a place on.
"""

from __future__ import annotations

import numpy as np

from neaptide_kernels import counter_random
from neaptide_kernels.compiling import inner, step

from .on_host import BLOCK
from .reference import SMALLEST, SYMMETRIC

_f32, _i32, _u32 = np.float32, np.int32, np.uint32
_FIRST, _SECOND = map(_u32, (counter_random.FIRST, counter_random.SECOND))
_UPPER, _ODD, _BELOW_HALF, _DRAWN = map(_u32, (16, 1, 0x7FFF, 8))
_MAGNITUDE, _LEFT = _i32(0x7FFFFFFF), _i32(31)
_INFINITE, _MINUS_INFINITE = _i32(0x7F800000), _i32(0x807FFFFF - (1 << 32))
_BF16_NAN = np.uint16(0x7FC0)
_ZERO, _HALF, _ONE, _NAN = map(_f32, (0, 0.5, 1, np.nan))
_SMALLEST, _SYMMETRIC, _AFFINE, _DRAW = map(_f32, (SMALLEST, SYMMETRIC, 127.5, 2.0**-24))
_LOWEST, _LEAST, _MOST = map(_i32, (-128, -SYMMETRIC, 127))
_TO_INTEGER = _f32(1.5 * 2**23)
"""A float32 below 2**22 becomes a whole number if this is added and subtracted."""


@inner
def _number(source, i):
    """Return a number of an array of float32, or of bfloat16 as uint16."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        return _u32(_u32(source[i]) << _UPPER).view(_f32)
    return _f32(source[i])


@inner
def _ordered(raw):
    """Return the bits of a float32 as a whole number of the same order; and the way back."""
    return _i32(raw ^ _i32(_i32(raw >> _LEFT) & _MAGNITUDE))


@inner
def _extremes(source, affine):
    """Return the least and the largest number, ordered. Of symmetric groups only magnitudes."""
    low, high = _i32(0), _i32(0)
    if affine:
        for i in range(len(source)):
            ordered = _ordered(_f32(_number(source, i)).view(_i32))
            low = min(low, ordered)
            high = max(high, ordered)
    else:
        for i in range(len(source)):
            high = max(high, _i32(_f32(_number(source, i)).view(_i32) & _MAGNITUDE))
    return low, high


@inner
def _parameters(low, high, affine):
    """Return the scale, its inverse and the zero, as `parameters` of the reference does."""
    if high >= _INFINITE or low <= _MINUS_INFINITE:
        return _NAN, _NAN, _ZERO
    least, largest, codes = _i32(_ordered(low)).view(_f32), _i32(high).view(_f32), _SYMMETRIC
    extent = largest
    if affine:
        extent, codes = _f32(_f32(largest * _HALF) - _f32(least * _HALF)), _AFFINE
    if extent < _SMALLEST:
        return _ZERO, _ZERO, _ZERO
    # torch divides a number by a tensor in two operations.
    inverse = _f32(_f32(_ONE / extent) * codes)
    zero = _ZERO
    if affine:
        zero = _f32(_f32(_LOWEST) - _whole(_f32(least * inverse)))
        zero = max(_f32(_LOWEST), min(_f32(_MOST), zero))
    return _f32(extent / codes), inverse, zero


@inner
def _whole(value):
    return _f32(_f32(value + _TO_INTEGER) - _TO_INTEGER)


@inner
def _draw(position, first, second):
    """Return `uniform` of a position below 2**32."""
    mixed = _u32(position ^ first)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) * _FIRST)
    mixed = _u32(mixed ^ second)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(15))) * _SECOND)
    mixed = _u32(mixed ^ _u32(mixed >> _u32(16)))
    return _f32(_f32(_i32(mixed >> _DRAWN)) * _DRAW)


@inner
def _encode(source, codes, inverse, zero, least, stochastic, position, first, second):
    if inverse != inverse:
        codes[:] = 0
    elif stochastic:
        for i in range(len(source)):
            scaled = _f32(_number(source, i) * inverse)
            below = _whole(scaled)
            below = _f32(below - (_ONE if below > scaled else _ZERO))
            draw = _draw(_u32(position + _u32(i)), first, second)
            up = _ONE if draw < _f32(scaled - below) else _ZERO
            code = _i32(_f32(_f32(below + up) + zero))
            codes[i] = np.int8(max(least, min(_MOST, code)))
    else:
        for i in range(len(source)):
            code = _i32(_f32(_whole(_f32(_number(source, i) * inverse)) + zero))
            codes[i] = np.int8(max(least, min(_MOST, code)))


@step
def quantize_groups(
    source, codes, scales, zeros, group, affine, stochastic, first, second, begin, end
):
    """Quantize groups that fit in a cache. The arrays are flat; bfloat16 comes as uint16."""
    least = _LOWEST if affine else _LEAST
    for each in range(begin, end):
        at = each * group
        numbers = source[at : at + group]
        low, high = _extremes(numbers, affine)
        scale, inverse, zero = _parameters(low, high, affine)
        scales[each], zeros[each] = scale, np.int8(zero)
        target = codes[at : at + group]
        _encode(numbers, target, inverse, zero, least, stochastic, _u32(at), first, second)


@step
def extremes(source, lows, highs, affine, begin, end):
    """Write the extremes of blocks, for `quantize_group`."""
    for block in range(begin, end):
        at = block * BLOCK
        lows[block], highs[block] = _extremes(source[at : at + BLOCK], affine)


@step
def quantize_group(
    source, codes, scale, zero, low, high, start, affine, stochastic, first, second, begin, end
):
    """Quantize blocks of one long group, of which `start` is the first element's position."""
    least = _LOWEST if affine else _LEAST
    scale[0], inverse, shift = _parameters(_i32(low), _i32(high), affine)
    zero[0] = np.int8(shift)
    for block in range(begin, end):
        at = block * BLOCK
        part, target = source[at : at + BLOCK], codes[at : at + BLOCK]
        position = _u32(start + at)
        _encode(part, target, inverse, shift, least, stochastic, position, first, second)


@inner
def _store(target, i, value):
    """Store float32, or bfloat16 as uint16, rounded to the nearest."""
    if target.itemsize == 2:  # noqa: PLR2004 - bytes
        raw = _f32(value).view(_u32)
        odd = _u32(_u32(raw >> _UPPER) & _ODD)
        half = np.uint16(_u32(_u32(raw + _BELOW_HALF) + odd) >> _UPPER)
        target[i] = half if value == value else _BF16_NAN
    else:
        target[i] = value


@step
def dequantize(codes, scales, zeros, target, group, begin, end):
    """Decode blocks of elements, each of which has several groups or a piece of one."""
    last = min(len(codes), end * BLOCK)
    at = begin * BLOCK
    while at < last:
        each = at // group
        until = min(last, (each + 1) * group)
        part, values, scale = codes[at:until], target[at:until], scales[each]
        zero = _f32(zeros[each]) if len(zeros) else _ZERO
        for i in range(len(part)):
            _store(values, i, _f32(_f32(_f32(part[i]) - zero) * scale))
        at = until
