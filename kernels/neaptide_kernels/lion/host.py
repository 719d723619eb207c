"""Lion on a CPU, compiled by Numba: every element is read and written once.

The step computes what the op's reference does, to the bit. All numbers are float32 or uint32; Numba
would make 64 bits of them, so each result is converted. Loops go over slices of a block: Numba
makes no wide loops over arrays from a place on.
"""

from __future__ import annotations

import numpy as np

from neaptide_kernels import counter_random
from neaptide_kernels.compiling import fused, inner, step

from .on_host import BLOCK

_f32, _u32 = np.float32, np.uint32
_FIRST, _SECOND, _GOLDEN = map(
    _u32, (counter_random.FIRST, counter_random.SECOND, counter_random.GOLDEN)
)
_UPPER, _ODD, _BELOW_HALF = map(_u32, (16, 1, 0x7FFF))
_EXPONENT, _BF16_NAN = _u32(0x7F800000), np.uint16(0x7FC0)
_ZERO, _HALF, _ONE = map(_f32, (0, 0.5, 1))


@inner
def _number(source, i):
    """Return a number of an array of float32, or of bfloat16 as uint16."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        return _u32(_u32(source[i]) << _UPPER).view(_f32)
    return _f32(source[i])


@inner
def _average(mean, gradient, share):
    """Interpolate as torch does, which begins at the nearer end."""
    if share < _HALF:
        return fused(share, _f32(gradient - mean), mean)
    return fused(_f32(share - _ONE), _f32(gradient - mean), gradient)


@inner
def _to_nearest(value):
    raw = _f32(value).view(_u32)
    odd = _u32(_u32(raw >> _UPPER) & _ODD)
    half = np.uint16(_u32(_u32(raw + _BELOW_HALF) + odd) >> _UPPER)
    return half if value == value else _BF16_NAN


@inner
def _by_chance(value, lower, upper, first):
    """Return bfloat16 as `apply_delta` rounds at the position whose lower 32 bits are `lower`."""
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
def _sign(value):
    return _ONE if value > _ZERO else (-_ONE if value < _ZERO else _ZERO)


@step
def lion_step(
    weights, means, gradients, lr, kept, share, decay, first, second, begin, end
):  # fmt: skip
    """Update blocks. The arrays are flat, of float32, or of bfloat16 as uint16.

    `share` and `decay` are the gradient's shares of the two means. `first` and `second` are the
    keys of the seed by which bfloat16 is rounded.
    """
    for block in range(begin, end):
        at = block * BLOCK
        weight, mean = weights[at : at + BLOCK], means[at : at + BLOCK]
        gradient = gradients[at : at + BLOCK]
        # A block does not cross a multiple of 2**32.
        upper = _u32(_u32(_u32(at >> 32) * _GOLDEN) + second)
        lower = _u32(at & 0xFFFFFFFF)
        for i in range(len(weight)):
            before, average, grad = _number(weight, i), _number(mean, i), _number(gradient, i)
            moved, kept_average = _average(average, grad, share), _average(average, grad, decay)
            if weight.itemsize == 2:  # noqa: PLR2004 - bytes
                rounded = _u32(_u32(_to_nearest(moved)) << _UPPER).view(_f32)
                after = _f32(_f32(before * kept) - _f32(_sign(rounded) * lr))
                total = _f32(before + _f32(after - before))
                weight[i] = _by_chance(total, _u32(lower + _u32(i)), upper, first)
                mean[i] = _to_nearest(kept_average)
            else:
                weight[i] = _f32(_f32(before * kept) - _f32(_sign(moved) * lr))
                mean[i] = kept_average
