"""Weights plus scaled deltas on a CPU, compiled by Numba: every element is read once.

Each step computes what the op's reference does, in the same order and without fused operations. All
numbers are float32 or uint32; Numba would make 64 bits of them, so each result is converted. Loops
go over slices of a block: Numba makes no wide loops over arrays from a place on.
"""

from __future__ import annotations

import numpy as np

from neaptide_kernels import counter_random
from neaptide_kernels.compiling import inner, step

from .on_host import BLOCK

_f32, _u32 = np.float32, np.uint32
_FIRST, _SECOND, _GOLDEN = map(
    _u32, (counter_random.FIRST, counter_random.SECOND, counter_random.GOLDEN)
)
_UPPER, _ODD, _BELOW_HALF = map(_u32, (16, 1, 0x7FFF))
_EXPONENT, _BF16_NAN = _u32(0x7F800000), np.uint16(0x7FC0)


@inner
def _number(source, i):
    """Return a number of an array of float32, or of bfloat16 as uint16."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        return _u32(_u32(source[i]) << _UPPER).view(_f32)
    return _f32(source[i])


@inner
def _to_nearest(value):
    raw = _f32(value).view(_u32)
    odd = _u32(_u32(raw >> _UPPER) & _ODD)
    half = np.uint16(_u32(_u32(raw + _BELOW_HALF) + odd) >> _UPPER)
    return half if value == value else _BF16_NAN


@inner
def _by_chance(value, lower, upper, first):
    """Return bfloat16 as `reference.rounded` rounds where a position's lower 32 bits are these."""
    raw = _f32(value).view(_u32)
    mixed = _u32(lower ^ first)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) * _FIRST)
    mixed = _u32(mixed ^ upper)
    mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(15))) * _SECOND)
    mixed = _u32(mixed ^ _u32(mixed >> _u32(16)))
    rounded = _u32(raw + _u32(mixed >> _UPPER))
    if _u32(raw & _EXPONENT) == _EXPONENT:
        rounded = raw
    half = np.uint16(rounded >> _UPPER)
    return half if value == value else _BF16_NAN


@inner
def _add(target, before, moved, scale, stochastic, first, second, position):
    """Add a block, which does not cross a multiple of 2**32.

    Arrays of one dtype are one array: then only `target` is read, or the loop would not be wide.
    """
    upper = _u32(_u32(_u32(position >> 32) * _GOLDEN) + second)
    lower = _u32(position & 0xFFFFFFFF)
    for i in range(len(target)):
        same = target.itemsize == before.itemsize
        old = _number(target, i) if same else _number(before, i)
        value = _f32(old + _f32(_number(moved, i) * scale))
        if target.itemsize == 4:  # noqa: PLR2004 - bytes
            target[i] = value
        elif stochastic:
            target[i] = _by_chance(value, _u32(lower + _u32(i)), upper, first)
        else:
            target[i] = _to_nearest(value)


@inner
def _decode(values, codes, scales, group, start):
    """Load a block of codes; the first one's position among those of `scales` is `start`."""
    at = 0
    while at < len(codes):
        each = (start + at) // group
        until = min(len(codes), (each + 1) * group - start)
        part, target, scale = codes[at:until], values[at:until], scales[each]
        for i in range(len(part)):
            target[i] = _f32(_f32(part[i]) * scale)
        at = until


@step
def add_delta(weights, before, delta, scale, stochastic, first, second, position, begin, end):
    """Set blocks of `weights` to `before + delta * scale`.

    The arrays are flat, of float32, or of bfloat16 as uint16. `before` is `weights`, or it is of
    float32 and `weights` are of bfloat16. `first` and `second` are the keys of the seed. `position`
    is that of the first element.
    """
    for block in range(begin, end):
        at = block * BLOCK
        part, old, moved = (
            weights[at : at + BLOCK], before[at : at + BLOCK], delta[at : at + BLOCK],
        )  # fmt: skip
        _add(part, old, moved, scale, stochastic, first, second, position + at)


@step
def add_codes(
    weights, before, codes, scales, group, start, scale, stochastic, first, second, position,
    begin, end,
):  # fmt: skip
    """As `add_delta`, of a delta that is int8 codes in groups, each with one of `scales`.

    `start` is the position of the first code among those of `scales`.
    """
    moved = np.empty(BLOCK, _f32)
    for block in range(begin, end):
        at = block * BLOCK
        part, old = weights[at : at + BLOCK], before[at : at + BLOCK]
        _decode(moved, codes[at : at + BLOCK], scales, group, start + at)
        _add(part, old, moved, scale, stochastic, first, second, position + at)
