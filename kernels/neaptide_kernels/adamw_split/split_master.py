"""A float32 master weight as a bfloat16, which the model computes with, and an int16 beside it.

`hi` is the float32 rounded to the nearest bfloat16, halves upwards in magnitude; `lo` is what the
rounding took or added, as a difference of bit patterns. Rounding halves to even would leave
differences that no int16 holds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 20
"""Elements worked on at a time: beside its results a call allocates 8 bytes for each of these."""

_NAN = 0x7F81
_DIFFERENCE = -127  # 0xFF81

_HIGH = 1 if sys.byteorder == "little" else 0


def split(
    master: torch.Tensor, hi: torch.Tensor | None = None, lo: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(hi, lo)`, from which `join` makes every one of the 2**32 bit patterns again.

    Every NaN that arithmetic makes (a quiet one, of any payload) has a NaN as its `hi`; finite
    numbers that round beyond the largest bfloat16 have infinity, as in any rounding. Of the
    signalling NaNs, 0x7F800001..0x7F807FFF have infinity and 0x7F808000..0x7F80FFFF zero, and
    likewise with the sign set: there are more NaNs than bit patterns left for them.

    Args:
        master: float32, dense in memory (its strides may be in any order).
        hi: bfloat16 to write into, of the shape and strides of `master`; made if absent.
        lo: int16 to write into, likewise.
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
    """Return the float32 that `split` made `hi` and `lo` of.

    Args:
        hi: bfloat16, dense in memory.
        lo: int16, of its shape and strides.
        out: float32 to write into, likewise; made if absent.
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
    """Exchange the halves 0x8000 and 0x7F81, and 0x0000 and 0xFF81, where `borrowed` is -1.

    Rounding 0x7FFF8000..0x7FFFFFFF up carries into the sign, and 0x7FFFFFFF is the NaN that CUDA
    makes: its `hi` would be minus zero. 0x7F81 is a NaN. Both pairs differ in the bits 0xFF81.
    """
    magnitude = high & 0x7FFF
    concerned = (magnitude == 0).logical_or_(magnitude == _NAN)
    torch.mul(borrowed, concerned, out=magnitude)
    high.bitwise_xor_(magnitude.bitwise_and_(_DIFFERENCE))


def _chunks(
    master: torch.Tensor, hi: torch.Tensor, lo: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield as int16, of the elements in memory order: halves `[n, 2]`, `hi` `[n]`, `lo` `[n]`."""
    _check(master, "master", torch.float32, master)
    _check(hi, "hi", torch.bfloat16, master)
    _check(lo, "lo", torch.int16, master)
    halves, high, low = (
        tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.int16)
        for tensor in (master, hi, lo)
    )
    for start in range(0, low.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        yield halves.view(-1, 2)[part], high[part], low[part]


def _check(tensor: torch.Tensor, name: str, dtype: torch.dtype, master: torch.Tensor) -> None:
    if tensor.dtype != dtype:
        message = f"{name} of a split master is {tensor.dtype}, not {dtype}"
        raise TypeError(message)
    if tensor.shape != master.shape or _order(tensor) != _order(master):
        message = (
            f"{name} of a split master lies differently: shape {tuple(tensor.shape)} and strides "
            f"{tensor.stride()} beside {tuple(master.shape)} and {master.stride()}"
        )
        raise ValueError(message)
    # A tensor made like another has its strides exactly where that one is dense.
    if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
        message = f"{name} of a split master has gaps or overlaps: strides {tensor.stride()}"
        raise ValueError(message)


def _order(tensor: torch.Tensor) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
