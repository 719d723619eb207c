"""Random bits by position: the same numbers in torch and in a kernel, in any order of work.

The 32-bit finalizer `lowbias32` (Chris Wellons, "Prospecting for Hash Functions", 2018) over the
position, keyed before its first and its second round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MASK = 0xFFFFFFFF
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""The finalizer's multipliers."""
GOLDEN = 0x9E3779B9
"""Spreads the upper half of positions and seeds, `2**32` divided by the golden ratio."""


def keys(seed: int) -> tuple[int, int]:
    """Return the two 32-bit keys of a seed, any integer of 64 bits."""
    low, high = seed & _MASK, (seed >> 32) & _MASK
    first = _finalized(low ^ 0x243F6A88)
    return first, _finalized(first ^ high ^ 0x85A308D3)


def random_bits(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits for each position, int64 of the shape of `positions` (int64, >= 0)."""
    first, second = keys(seed)
    bits = (positions & _MASK) ^ first
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = bits ^ (((positions >> 32) * GOLDEN + second) & _MASK)
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)


def uniform(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """Return float32 numbers in [0, 1), multiples of `2**-24`, one for each position."""
    return (random_bits(seed, positions) >> 8).float() * 2.0**-24


def _finalized(bits: int) -> int:
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)
