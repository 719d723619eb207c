"""A float32 master weight that is stored as a bfloat16 `hi` and an int16 `lo`.

The model computes with `hi`. `hi` is the master rounded to the nearest bfloat16. Ties are rounded
away from zero: with ties rounded to even, some values of `lo` would not fit into an int16. `lo` is
the rounding error: the bit pattern of the master minus the bit pattern of `hi`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from neaptide_kernels.parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK, LARGE_CHUNK = 1 << 20, 1 << 23
"""Elements processed at a time on a CPU, and elsewhere, where each launch costs time. Temporary
tensors take 8 bytes for each of these elements."""

_NAN = 0x7F81
_DIFFERENCE = -127  # 0xFF81

_HIGH = 1 if sys.byteorder == "little" else 0


def split(
    master: torch.Tensor, hi: torch.Tensor | None = None, lo: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(hi, lo)`. `join` restores `master` from `(hi, lo)` for all 2**32 bit patterns.

    For a NaN from arithmetic (a quiet NaN of any payload), `hi` is a NaN. For a finite number that
    rounds beyond the largest bfloat16, `hi` is infinity, as in any rounding. For a signalling NaN,
    `hi` is not a NaN, because too few bit patterns are free: for 0x7F800001..0x7F807FFF `hi` is
    infinity, and for 0x7F808000..0x7F80FFFF `hi` is zero. The same applies with the sign bit set.

    Args:
        master: float32, dense in memory (its strides may be in any order).
        hi: bfloat16 to write into, of the shape and strides of `master`; allocated if None.
        lo: int16 to write into, of the same shape and strides; allocated if None.
    """
    hi = torch.empty_like(master, dtype=torch.bfloat16) if hi is None else hi
    lo = torch.empty_like(master, dtype=torch.int16) if lo is None else lo
    for halves, high, low in _chunks(master, hi, lo):
        low.copy_(halves[:, 1 - _HIGH])
        borrowed = low >> 15  # -1 where the lower half, read as signed, is negative
        torch.sub(halves[:, _HIGH], borrowed, out=high)
        _exchange(high, borrowed)
    return hi, lo


def join(hi: torch.Tensor, lo: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the float32 master from which `split` made `hi` and `lo`.

    Args:
        hi: bfloat16, dense in memory.
        lo: int16, of the shape and strides of `hi`.
        out: float32 to write into, of the same shape and strides; allocated if None.
    """
    out = torch.empty_like(hi, dtype=torch.float32) if out is None else out
    for halves, high, low in _chunks(out, hi, lo):
        halves[:, 1 - _HIGH].copy_(low)
        borrowed = low >> 15
        exchanged = high.clone()
        _exchange(exchanged, borrowed)
        torch.add(exchanged, borrowed, out=exchanged)
        halves[:, _HIGH].copy_(exchanged)
    return out


def _exchange(high: torch.Tensor, borrowed: torch.Tensor) -> None:
    """Where `borrowed` is -1, exchange 0x8000 with 0x7F81, and 0x0000 with 0xFF81, in `high`.

    The bit patterns 0x7FFF8000..0x7FFFFFFF are NaNs. If such a pattern is rounded up, a one is
    carried into the sign bit. For example, CUDA produces the NaN 0x7FFFFFFF, whose `hi` would be
    minus zero (0x8000). After the exchange, `hi` is the NaN 0x7F81. Each exchange is an
    exclusive or with 0xFF81. `borrowed` is -1 where the upper half of the master is rounded up.
    """
    magnitude = high & 0x7FFF
    concerned = (magnitude == 0).logical_or_(magnitude == _NAN)
    torch.mul(borrowed, concerned, out=magnitude)
    high.bitwise_xor_(magnitude.bitwise_and_(_DIFFERENCE))


def _chunks(
    master: torch.Tensor, hi: torch.Tensor, lo: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield chunks of three int16 views in memory order: master `[n, 2]`, `hi` `[n]`, `lo` `[n]`.

    The two columns of a master are the halves of each float32.
    """
    _check(master, "master", torch.float32, master)
    _check(hi, "hi", torch.bfloat16, master)
    _check(lo, "lo", torch.int16, master)
    halves, high, low = (
        tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.int16)
        for tensor in (master, hi, lo)
    )
    for part in parts_of(low, CHUNK, LARGE_CHUNK):
        yield halves.view(-1, 2)[part], high[part], low[part]


def _check(tensor: torch.Tensor, name: str, dtype: torch.dtype, master: torch.Tensor) -> None:
    if tensor.dtype != dtype:
        message = f"{name} of a split master is {tensor.dtype}, not {dtype}"
        raise TypeError(message)
    if tensor.shape != master.shape or _order(tensor) != _order(master):
        message = (
            f"{name} of a split master must have the layout of the master: it has shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}, the master "
            f"{tuple(master.shape)} and {master.stride()}"
        )
        raise ValueError(message)
    # `empty_like` keeps the strides of a tensor only if that tensor is dense.
    if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
        message = f"{name} of a split master has gaps or overlaps: strides {tensor.stride()}"
        raise ValueError(message)


def _order(tensor: torch.Tensor) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
