"""Optimizer state in 8 bits: each value is a code, and each block of 256 values has one scale.

A moment (a running average of an optimizer) changes in most steps by less than half the distance
between two codes. With rounding to the nearest code, the moment would never change. Therefore
moments are rounded stochastically: the probability of rounding up is the remainder (the position
between the two codes, from 0 to 1), so the mean of many roundings is exact. A value is the square
or the fourth power of its code, times the scale, so small values have many codes. With squares, the
smallest value above 0 is 6e-5 of the block's largest value. With fourth powers, the smallest value
above 0 is 2e-10 of the largest value. Adam's second moment uses fourth powers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.counter_random import keyed_bits, keys_at
from neaptide_kernels.parts import PIECE, parts_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 256
"""Number of consecutive values that share a scale."""
SIGNED, UNSIGNED = 127, 255
"""The largest signed and the largest unsigned code."""
SIGNED_TOP = float(SIGNED**2)
UNSIGNED_TOP = float(torch.tensor(float(UNSIGNED**2), dtype=torch.float32, device="cpu") ** 2)
"""The float32 values of the largest signed and unsigned code if the scale is 1."""
SIGNED_LEAST, UNSIGNED_LEAST = 2.0**-100, 2.0**-90
"""If the largest value of a block is above 0 but below this bound, the scale is computed from the
bound. So no scale is denormal."""
TENSOR = 1 << 40
"""Number of positions in the random stream that each tensor of a list may use."""

WINDOW = 64
"""Number of steps after which the random bits restart from a new random value."""
TURN = 0x9E379E37
"""This number is added to the 32 random bits at each step. Each 16-bit half is `2**16` divided by
the golden ratio."""
THIRD = 0x9E3779B1
"""Multiplier by which `third` derives 16 more bits from 32 random bits."""

_LARGE_PIECE = 1 << 24


def blocks_of(elements: int) -> int:
    """Return the number of blocks of a tensor. Each block has one scale."""
    return -(-elements // BLOCK)


def update_by_pieces(
    lists: Sequence[Sequence[torch.Tensor]],
    seed: int,
    update: Callable[..., tuple[torch.Tensor, ...]],
    factors: Callable[[torch.Tensor], tuple[Any, ...]],
) -> None:
    """Update weights and state. Each call of `update` gets a piece: whole blocks of one tensor.

    Args:
        lists: weights, gradients, codes, scales and step counts, in this order.
        seed: seed of the stochastic rounding.
        update: takes weights, codes, scales, gradients, a `Stream`, the piece's start in the
            stream, and factors; returns new weights, codes and scales.
        factors: returns the factors of a tensor for its step count.
    """
    kinds = (len(lists) - 3) // 2
    for place, (param, grad, *state, step) in rows_of(lists):
        codes, scales = state[:kinds], state[kinds:]
        numbers, random = factors(step), stream(seed, step)
        weight, gradient = param.reshape(-1), grad.reshape(-1)
        for part in parts_of(weight, PIECE, _LARGE_PIECE):
            blocks = slice(part.start // BLOCK, blocks_of(part.stop))
            start = step.new_full((), place * TENSOR + part.start, dtype=torch.int64)
            held = [each[part] for each in codes] + [scale[blocks] for scale in scales]
            targets = [weight[part], *held]
            updated = update(*targets, gradient[part], random, start, *numbers)
            for target, value in zip(targets, updated, strict=True):
                target.copy_(value)
        if not param.is_contiguous():
            param.copy_(weight.view(param.shape))


def random_bits(seed: int, step: torch.Tensor, tensor: int, elements: slice) -> torch.Tensor:
    """Return 32 random bits, int64, for elements of a tensor at a step.

    Every 64 steps an element gets new random bits. In each other step, the constant `TURN`, which
    is derived from the golden ratio, is added to the bits. This spreads the upward roundings
    evenly over the steps. The number of upward roundings has the same mean as with independent
    random bits, but a much smaller variance.

    Args:
        seed: any integer of 64 bits.
        step: 0-dim float32, a whole number.
        tensor: the tensor's place in the list.
        elements: places of the elements in the tensor.
    """
    return stream(seed, step).bits(tensor * TENSOR + elements.start, elements.stop - elements.start)


@attrs.frozen
class Stream:
    """The random stream of one seed and step, as 0-dim int64 tensors. The host never reads them."""

    first: torch.Tensor
    second: torch.Tensor
    turned: torch.Tensor

    def bits(self, start: int | torch.Tensor, number: int) -> torch.Tensor:
        """Return 32 random bits, int64, for `number` positions from `start` on."""
        positions = torch.arange(number, device=self.first.device) + start
        return (keyed_bits(self.first, self.second, positions) + self.turned) & 0xFFFFFFFF


def stream(seed: int, step: torch.Tensor) -> Stream:
    """Return the random stream of a step; `step` is 0-dim float32, a whole number."""
    count = step.long()
    return Stream(*keys_at(seed, count // WINDOW), (count % WINDOW) * TURN)


def as_float32(*numbers: float) -> list[float]:
    """Return `numbers` rounded to float32."""
    return torch.tensor(numbers, dtype=torch.float32, device="cpu").tolist()


def fractions(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two float32 numbers in (0, 1): from the upper and from the lower 16 of 32 bits."""
    return _fraction(bits >> 16), _fraction(bits & 0xFFFF)


def third(bits: torch.Tensor) -> torch.Tensor:
    """Return 16 bits, int64, independent of the upper 16 and of the lower 16 of the 32 `bits`."""
    return ((bits * THIRD) >> 16) & 0xFFFF


def _fraction(bits: torch.Tensor) -> torch.Tensor:
    return bits.float() * 2.0**-16 + 2.0**-17


def decode_signed(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return `code * |code| * scale` in float32.

    Args:
        codes: int8 `[elements]`.
        scale: float32 `[blocks]`.
    """
    code = codes.float()
    return (code * code.abs()) * _spread(scale, len(codes))


def decode_unsigned(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return `code ** 4 * scale` in float32; `codes` are uint8."""
    code = codes.float()
    square = code * code
    return (square * square) * _spread(scale, len(codes))


def encode_signed(
    values: torch.Tensor, fraction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes in [-127, 127] and the scales of the blocks.

    Rounding does not change a value that a code represents exactly. The scale of a block with an
    inf or a NaN is NaN, and the block decodes to NaN.

    Args:
        values: float32 `[elements]`.
        fraction: a random number in (0, 1) for each value. The remainder of a value is the
            distance from the value of the lower code, divided by the distance between the values
            of the lower and the upper code. The value is rounded away from zero if the remainder
            is larger than the fraction.
    """
    scale, inverse = _scales(values.abs(), SIGNED_LEAST, SIGNED_TOP)
    scaled = values.abs() * _spread(inverse, len(values))
    lower = _below(scaled.sqrt(), SIGNED)
    code = lower + (fraction * (2 * lower + 1) < scaled - lower * lower)
    return code.copysign(values).to(torch.int8), scale


def encode_unsigned(
    values: torch.Tensor, fraction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 codes and the scales of the blocks, for values >= 0. See `encode_signed`.

    Only the value 0 has the code 0. A value between 0 and the value of code 1 has the code 1. So
    rounding never turns the divisor of an update into zero.
    """
    scale, inverse = _scales(values, UNSIGNED_LEAST, UNSIGNED_TOP)
    scaled = values * _spread(inverse, len(values))
    lower = _below(scaled.sqrt().sqrt(), UNSIGNED)
    below, above = lower * lower, (lower + 1) * (lower + 1)
    below, above = below * below, above * above
    code = lower + (fraction * (above - below) < scaled - below)
    return code.maximum((values > 0).float()).to(torch.uint8), scale


def root(values: torch.Tensor) -> torch.Tensor:
    """Return correctly rounded float32 square roots; `torch.sqrt` on a CPU may round wrongly."""
    return values.double().sqrt().float()


def stored(values: torch.Tensor, dtype: torch.dtype, bits: torch.Tensor) -> torch.Tensor:
    """Return `values` in a weight's dtype: float32 unchanged, bfloat16 rounded stochastically.

    Args:
        values: float32.
        dtype: float32 or bfloat16.
        bits: random int64 below 2**16, of the shape of `values`. They are added to the 16 bits
            that bfloat16 drops.
    """
    if dtype == torch.bfloat16:
        raw = values.view(torch.int32)
        rounded = ((raw + bits.to(torch.int32)) & -0x10000).view(torch.float32)
        values = torch.where(values.isfinite(), rounded, values)
    return values.to(dtype)


def _below(codes: torch.Tensor, top: int) -> torch.Tensor:
    """Return the lower of the two adjacent codes for each exact (not yet rounded) code.

    If the exact code is a whole number, the result may be the exact code minus 1. Then the
    remainder is 1.
    """
    return (codes - 0.5).round().nan_to_num(top - 1.0).clamp(max=top - 1.0)


def _scales(
    magnitudes: torch.Tensor, least: float, top: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale of each block and the inverse scale; both are 0 for a block of zeros."""
    padded = torch.nn.functional.pad(magnitudes, (0, -len(magnitudes) % BLOCK))
    largest = padded.view(-1, BLOCK).amax(1)
    largest = torch.where(largest > 0, largest.clamp(min=least), largest)
    largest = largest.masked_fill(largest == torch.inf, torch.nan)
    return largest / top, top / largest.masked_fill(largest == 0, torch.inf)


def _spread(scale: torch.Tensor, elements: int) -> torch.Tensor:
    return scale.repeat_interleave(BLOCK)[:elements]
