"""Products of matrices in 16 bits, which oneDNN computes on packed copies of them."""

from __future__ import annotations

import torch

_ATEN = torch.ops.aten
_SMALLEST = 16**3
"""Products with at most so many multiplications are computed without oneDNN."""
_LEAST, _LEAST_TRANSPOSED = 6 * 2**10, 2**13
"""Bytes that each thread needs in any case."""
_KEPT = 160 * 2**10
"""Bytes of a transposed left matrix that a thread packs at once."""
_SHARED, _ROWS = 2**16, 512
"""Each thread packs a right matrix of at most so many bytes; and a larger one for so many rows."""


def _packed(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return an upper bound of the bytes of all threads."""
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.dtype not in (torch.bfloat16, torch.float16) or rows * inner * columns <= _SMALLEST:
        return 0
    threads, itemsize = torch.get_num_threads(), left.dtype.itemsize
    packed = _up(inner, 32) * _up(columns, 64) * itemsize
    times = threads if packed <= _SHARED else min(threads, -(-rows // _ROWS))
    each = _LEAST
    if left.stride(-1) != 1:
        each = _LEAST_TRANSPOSED + min(_up(rows, 64) * _up(inner, 64) * itemsize, _KEPT)
    return packed * times + threads * each


def _up(length: int, to: int) -> int:
    return -(-length // to) * to


TEMPORARY = {
    _ATEN.mm.default: lambda args, _: _packed(*args[:2]),
    _ATEN.bmm.default: lambda args, _: _packed(*args[:2]),
    _ATEN.addmm.default: lambda args, _: _packed(*args[1:3]),
    _ATEN.baddbmm.default: lambda args, _: _packed(*args[1:3]),
}
"""The bytes inside, by operation."""
