"""Random bits by position: equal numbers in torch and in a kernel, in any order of computation.

The bits are the 32-bit finalizer `lowbias32` (Chris Wellons, "Prospecting for Hash Functions",
2018) of the position. A key is mixed in before the finalizer's first and second round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Bits = TypeVar("Bits", int, "torch.Tensor")

_MASK = 0xFFFFFFFF
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""The finalizer's multipliers."""
GOLDEN = 0x9E3779B9
"""Multiplier of the upper halves of positions, and of steps: `2**32` over the golden ratio."""


def keys(seed: int) -> tuple[int, int]:
    """Return the two 32-bit keys of a 64-bit seed."""
    low, high = seed & _MASK, (seed >> 32) & _MASK
    first = finalized(low ^ 0x243F6A88)
    return first, finalized(first ^ high ^ 0x85A308D3)


def random_bits(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits for each position, int64 of the shape of `positions` (int64, >= 0)."""
    return keyed_bits(*keys(seed), positions)


def keyed_bits(
    first: int | torch.Tensor, second: int | torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Return the bits of `random_bits` for a seed given by its keys, ints or int64 tensors."""
    bits = (positions & _MASK) ^ first
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = bits ^ (((positions >> 32) * GOLDEN + second) & _MASK)
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)


def keys_at(seed: int, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a seed's keys of one step, 0-dim int64; `step` is int64 and stays on the device."""
    first, second = keys(seed)
    mixed = finalized((step * GOLDEN + first) & _MASK)
    return mixed, finalized(mixed ^ second)


def signed(key: int) -> int:
    """Return a key's 32 bits as a signed integer, the type i32 of a kernel's argument."""
    return key - (1 << 32) if key >> 31 else key


def uniform(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """Return float32 numbers in [0, 1), multiples of `2**-24`, one for each position."""
    return (random_bits(seed, positions) >> 8).float() * 2.0**-24


def finalized(bits: Bits) -> Bits:
    """Return the finalizer `lowbias32` of 32 bits, given as an int or an int64 tensor."""
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)
