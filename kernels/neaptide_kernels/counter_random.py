"""Random bits that depend only on a seed and a position, so torch and kernels draw equal bits.

The function `lowbias32` (a 32-bit finalizer: Chris Wellons, "Prospecting for Hash Functions",
2018) turns a position into bits. The function has two rounds. Before each round, one of the two
keys of the seed is mixed into the bits.
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
"""`2**32` divided by the golden ratio: it multiplies steps and the upper halves of positions."""


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
    """Return the bits of `random_bits`, given the seed's two keys as ints or int64 tensors."""
    bits = (positions & _MASK) ^ first
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = bits ^ (((positions >> 32) * GOLDEN + second) & _MASK)
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)


def keys_at(seed: int, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two keys of a seed for one step, 0-dim int64; the host does not read `step`."""
    first, second = keys(seed)
    mixed = finalized((step * GOLDEN + first) & _MASK)
    return mixed, finalized(mixed ^ second)


def signed(key: int) -> int:
    """Return the 32 bits of a key as a signed integer. A kernel takes this integer as type i32."""
    return key - (1 << 32) if key >> 31 else key


def uniform(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """Return one float32 number in [0, 1) for each position; it is a multiple of `2**-24`."""
    return (random_bits(seed, positions) >> 8).float() * 2.0**-24


def finalized(bits: Bits) -> Bits:
    """Apply the finalizer `lowbias32` to 32 bits. The bits are an int or an int64 tensor."""
    bits = ((bits ^ (bits >> 16)) * FIRST) & _MASK
    bits = ((bits ^ (bits >> 15)) * SECOND) & _MASK
    return bits ^ (bits >> 16)
