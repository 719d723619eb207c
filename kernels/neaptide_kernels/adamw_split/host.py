"""AdamW over split masters on a CPU, compiled by Numba: every element is read and written once.

The step computes what the op's reference does, to the bit. Two operations are fused (rounded once),
as torch's are; `forms` says which roots torch takes. All numbers are float32 or uint32; Numba would
make 64 bits of them, so each result is converted. One loop does all: with several loops over pieces
in a cache it takes twice as long. Loops go over slices of a block: Numba makes no wide loops over
arrays from a place on.
"""

from __future__ import annotations

import numpy as np

from neaptide_kernels.compiling import call_with_pointers, fused, inner, step

from .on_host import BLOCK

_f32, _u32 = np.float32, np.uint32
_UPPER, _MAGNITUDE, _NAN, _EXCHANGED, _ONE = map(_u32, (16, 0x7FFF, 0x7F81, 0xFF81, 1))
_BORROWING, _LOWER, _ROUNDS_UP = map(_u32, (15, 0xFFFF, 0x8000))
_HALF, _WHOLE = _f32(0.5), _f32(1)
_AT_ONCE = 64


@inner
def _number(source, i):
    """Return a number of an array of float32, or of bfloat16 as uint16."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        return _u32(_u32(source[i]) << _UPPER).view(_f32)
    return _f32(source[i])


@inner
def _exchange(high, borrowed):
    """Return the upper half of a master as `split_master` exchanges it."""
    magnitude = _u32(high & _MAGNITUDE)
    concerned = _u32((magnitude == 0) | (magnitude == _NAN)) & borrowed
    return _u32(high ^ _u32(_EXCHANGED * _u32(concerned)))


@inner
def _average(mean, gradient, share):
    """Interpolate as torch does, which begins at the nearer end."""
    if share < _HALF:
        return fused(share, _f32(gradient - mean), mean)
    return fused(_f32(share - _WHOLE), _f32(gradient - mean), gradient)


@inner
def _moved(high, low, mean, root, kept, size, correction, eps):
    """Return the bits of an updated master."""
    lower = _u32(low)
    borrowed = _u32(lower >> _BORROWING)
    upper = _u32(_exchange(_u32(high), borrowed) - borrowed)
    master = _u32(_u32(upper << _UPPER) | lower).view(_f32)
    denominator = _f32(_f32(root / correction) + eps)
    return _f32(_f32(master * kept) + _f32(_f32(size * mean) / denominator)).view(_u32)


@inner
def _upper(bits):
    borrowed = _u32(_u32(bits >> _BORROWING) & _ONE)
    return np.uint16(_exchange(_u32(_u32(bits + _ROUNDS_UP) >> _UPPER), borrowed))


@inner
def _by_own_roots(
    high, low, mean, square, gradient, first, last, loose,
    kept, size, correction, share, beta2, added, eps, sign,
):  # fmt: skip
    """Update elements; where `loose`, torch fuses another pair of operations."""
    for i in range(first, last):
        grad = _f32(_number(gradient, i) * sign)
        average = _average(mean[i], grad, share)
        if loose:
            squared = fused(square[i], beta2, _f32(_f32(added * grad) * grad))
        else:
            squared = fused(_f32(added * grad), grad, _f32(square[i] * beta2))
        bits = _moved(high[i], low[i], average, np.sqrt(squared), kept, size, correction, eps)
        mean[i] = average
        square[i] = squared
        low[i] = np.uint16(bits & _LOWER)
        high[i] = _upper(bits)


@inner
def _by_roots_of_torch(
    high, low, mean, square, gradient, root, mode, roots,
    kept, size, correction, share, beta2, added, eps, sign,
):  # fmt: skip
    """Update a block. For more elements at once the function of roots starts threads of its own."""
    for i in range(len(high)):
        grad = _f32(_number(gradient, i) * sign)
        mean[i] = _average(mean[i], grad, share)
        square[i] = fused(_f32(added * grad), grad, _f32(square[i] * beta2))
    for at in range(0, len(high), _AT_ONCE):
        count = min(_AT_ONCE, len(high) - at)
        source, target = square.ctypes.data + 4 * at, roots.ctypes.data + 4 * at
        call_with_pointers(root, count, source, target, mode)
    for i in range(len(high)):
        bits = _moved(high[i], low[i], mean[i], roots[i], kept, size, correction, eps)
        low[i] = np.uint16(bits & _LOWER)
        high[i] = _upper(bits)


@step
def adamw_split_step(
    highs, lows, means, squares, gradients, kept, size, correction, share, beta2, added, eps,
    sign, whole, root, mode, begin, end,
):  # fmt: skip
    """Update blocks. The arrays are flat; bfloat16 and int16 come as uint16.

    `sign` is -1 to maximize, else 1. From element `whole` on torch rounds otherwise. `root` is the
    address of a function that takes roots as torch does, and `mode` its last argument; 0: a CPU's
    own, which are rounded correctly.
    """
    roots = np.empty(BLOCK, _f32)
    for block in range(begin, end):
        at = block * BLOCK
        high, low = highs[at : at + BLOCK], lows[at : at + BLOCK]
        mean, square = means[at : at + BLOCK], squares[at : at + BLOCK]
        gradient = gradients[at : at + BLOCK]
        if root:
            _by_roots_of_torch(
                high, low, mean, square, gradient, root, mode, roots,
                kept, size, correction, share, beta2, added, eps, sign,
            )  # fmt: skip
            continue
        last = min(len(high), whole - at)
        _by_own_roots(
            high, low, mean, square, gradient, 0, last, False,
            kept, size, correction, share, beta2, added, eps, sign,
        )  # fmt: skip
        _by_own_roots(
            high, low, mean, square, gradient, last, len(high), True,
            kept, size, correction, share, beta2, added, eps, sign,
        )  # fmt: skip
