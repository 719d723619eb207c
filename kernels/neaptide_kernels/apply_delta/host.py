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
def _load(values, raw, source):
    """Load a block of float32, or of bfloat16 as uint16; `raw` is the memory of `values`."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        for i in range(len(source)):
            raw[i] = _u32(_u32(source[i]) << _UPPER)
    else:
        for i in range(len(source)):
            values[i] = source[i]


@inner
def _store_by_chance(target, values, raw, first, second, position):
    """Store bfloat16 as `reference.rounded` does. A block does not cross a multiple of 2**32."""
    upper = _u32(_u32(_u32(position >> 32) * _GOLDEN) + second)
    lower = _u32(position & 0xFFFFFFFF)
    for i in range(len(target)):
        mixed = _u32(_u32(lower + _u32(i)) ^ first)
        mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(16))) * _FIRST)
        mixed = _u32(mixed ^ upper)
        mixed = _u32(_u32(mixed ^ _u32(mixed >> _u32(15))) * _SECOND)
        mixed = _u32(mixed ^ _u32(mixed >> _u32(16)))
        rounded = _u32(raw[i] + _u32(mixed >> _UPPER))
        if _u32(raw[i] & _EXPONENT) == _EXPONENT:
            rounded = raw[i]
        half = np.uint16(rounded >> _UPPER)
        target[i] = half if values[i] == values[i] else _BF16_NAN


@inner
def _store_nearest(target, values, raw):
    for i in range(len(target)):
        odd = _u32(_u32(raw[i] >> _UPPER) & _ODD)
        half = np.uint16(_u32(_u32(raw[i] + _BELOW_HALF) + odd) >> _UPPER)
        target[i] = half if values[i] == values[i] else _BF16_NAN


@step
def add_delta(weights, before, delta, scale, stochastic, first, second, position, begin, end):
    """Set blocks of `weights` to `before + delta * scale`.

    The arrays are flat, of float32, or of bfloat16 as uint16. `before` is `weights`, or a float32
    array. `first` and `second` are the keys of the seed. `position` is that of the first element.
    """
    values, moved = np.empty(BLOCK, _f32), np.empty(BLOCK, _f32)
    raw, moved_raw = values.view(_u32), moved.view(_u32)
    for block in range(begin, end):
        at = block * BLOCK
        target = weights[at : at + BLOCK]
        _load(values, raw, before[at : at + BLOCK])
        _load(moved, moved_raw, delta[at : at + BLOCK])
        for i in range(len(target)):
            values[i] = _f32(values[i] + _f32(moved[i] * scale))
        if weights.itemsize == 4:  # noqa: PLR2004 - bytes
            for i in range(len(target)):
                target[i] = values[i]
        elif stochastic:
            _store_by_chance(target, values, raw, first, second, position + at)
        else:
            _store_nearest(target, values, raw)
