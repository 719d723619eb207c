"""Products of matrices in 16 bits, which oneDNN computes on packed copies of them."""

from __future__ import annotations

import torch

_ATEN = torch.ops.aten
_SMALLEST = 16**3
"""Products with at most so many multiplications are computed without oneDNN."""
_KEPT, _LEAST = 2**16, 6144
"""Bytes of the left matrix that are packed at once, and of what is needed in any case."""


def _packed(left: torch.Tensor, right: torch.Tensor) -> int:
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.dtype not in (torch.bfloat16, torch.float16) or rows * inner * columns <= _SMALLEST:
        return 0
    deep = _up(inner) * left.dtype.itemsize
    transposed = left.stride(-1) != 1
    return deep * _up(columns) + _LEAST + (min(_up(rows) * deep, _KEPT) if transposed else 0)


def _up(length: int) -> int:
    return -(-length // 64) * 64


TEMPORARY = {
    _ATEN.mm.default: lambda args, _: _packed(*args[:2]),
    _ATEN.bmm.default: lambda args, _: _packed(*args[:2]),
    _ATEN.addmm.default: lambda args, _: _packed(*args[1:3]),
    _ATEN.baddbmm.default: lambda args, _: _packed(*args[1:3]),
}
"""The bytes inside, by operation."""
