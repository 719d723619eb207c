"""AdamW over split masters on a CPU, compiled by Numba: every element is read and written once.

The step computes what the op's reference does, to the bit. Two operations are fused (rounded once),
as torch's are; `forms` says which roots torch takes. All numbers are float32 or uint32; Numba would
make 64 bits of them, so each result is converted.
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
def _load(values, raw, source):
    """Load a block of float32, or of bfloat16 as uint16; `raw` is the memory of `values`."""
    if source.itemsize == 2:  # noqa: PLR2004 - bytes
        for i in range(len(source)):
            raw[i] = _u32(_u32(source[i]) << _UPPER)
    else:
        for i in range(len(source)):
            values[i] = source[i]


@inner
def _exchange(high, borrowed):
    """Return the upper half of a master as `split_master` exchanges it."""
    magnitude = _u32(high & _MAGNITUDE)
    concerned = _u32((magnitude == 0) | (magnitude == _NAN)) & borrowed
    return _u32(high ^ _u32(_EXCHANGED * _u32(concerned)))


@inner
def _join(raw, high, low):
    for i in range(len(high)):
        lower = _u32(low[i])
        borrowed = _u32(lower >> _BORROWING)
        upper = _u32(_exchange(_u32(high[i]), borrowed) - borrowed)
        raw[i] = _u32(_u32(upper << _UPPER) | lower)


@inner
def _split(raw, high, low):
    for i in range(len(high)):
        bits = raw[i]
        borrowed = _u32(_u32(bits >> _BORROWING) & _ONE)
        upper = _u32(_u32(bits + _ROUNDS_UP) >> _UPPER)
        low[i] = np.uint16(bits & _LOWER)
        high[i] = np.uint16(_exchange(upper, borrowed))


@inner
def _moments(mean, square, gradient, share, beta2, added, whole):
    """Update a block of moments. After `whole` elements torch fuses another pair of operations."""
    near = share < _HALF  # torch interpolates from the nearer end
    factor = share if near else _f32(share - _WHOLE)
    for i in range(len(mean)):
        base = mean[i] if near else gradient[i]
        mean[i] = fused(factor, _f32(gradient[i] - mean[i]), base)
    for i in range(whole):
        square[i] = fused(_f32(added * gradient[i]), gradient[i], _f32(square[i] * beta2))
    for i in range(whole, len(square)):
        square[i] = fused(square[i], beta2, _f32(_f32(added * gradient[i]) * gradient[i]))


@inner
def _take_roots(root, mode, numbers, roots):
    """Call torch's function of roots; for more elements it starts threads of its own."""
    for at in range(0, len(numbers), _AT_ONCE):
        count = min(_AT_ONCE, len(numbers) - at)
        source, target = numbers.ctypes.data + 4 * at, roots.ctypes.data + 4 * at
        call_with_pointers(root, count, source, target, mode)


@step
def adamw_split_step(
    highs, lows, means, squares, gradients, kept, size, correction, share, beta2, added, eps,
    sign, whole, root, mode, begin, end,
):  # fmt: skip
    """Update blocks. The arrays are flat; bfloat16 and int16 come as uint16.

    `sign` is -1 to maximize, else 1. `root` is the address of a function that takes roots as
    torch does, and `mode` its last argument; 0: a CPU's own, which are rounded correctly.
    """
    g, w, roots = np.empty(BLOCK, _f32), np.empty(BLOCK, _f32), np.empty(BLOCK, _f32)
    g_raw, w_raw = g.view(_u32), w.view(_u32)
    for block in range(begin, end):
        at = block * BLOCK
        high, low = highs[at : at + BLOCK], lows[at : at + BLOCK]
        mean, square = means[at : at + BLOCK], squares[at : at + BLOCK]
        count = len(high)
        _load(g, g_raw, gradients[at : at + BLOCK])
        if sign < 0:
            for i in range(count):
                g[i] = -g[i]
        _moments(mean, square, g, share, beta2, added, min(count, whole - at))
        if root:
            _take_roots(root, mode, square, roots)
        else:
            for i in range(count):
                roots[i] = np.sqrt(square[i])
        _join(w_raw, high, low)
        for i in range(count):
            denominator = _f32(_f32(roots[i] / correction) + eps)
            w[i] = _f32(_f32(w[i] * kept) + _f32(_f32(size * mean[i]) / denominator))
        _split(w_raw, high, low)
