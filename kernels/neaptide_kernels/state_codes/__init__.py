"""Optimizer state in 8 bits: blocks of 256 values on power maps, stored by stochastic rounding.

A slow average moves by less than half the distance of two codes in almost every step, and stands
still where it is rounded to the nearest. Rounded up with the probability of the remainder, it is
right in the mean. Powers spend the codes on small values: squares reach down to 6e-5 of a block's
largest, fourth powers (whose square roots Adam divides by) to 2e-10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.counter_random import keyed_bits, keys_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BLOCK = 256
"""Values that share a scale, in the order of the parameter's elements."""
SIGNED, UNSIGNED = 127, 255
"""The largest codes."""
SIGNED_TOP = float(SIGNED**2)
UNSIGNED_TOP = float(torch.tensor(float(UNSIGNED**2), dtype=torch.float32, device="cpu") ** 2)
"""What the largest codes stand for at a scale of 1, in float32."""
SIGNED_LEAST, UNSIGNED_LEAST = 2.0**-100, 2.0**-90
"""Blocks whose largest value is less are coded as if it were this: no scale is denormal."""
TENSOR = 1 << 40
"""Random positions that one tensor of a list has."""

WINDOW = 64
"""Steps between two random starts."""
TURN = 0x9E379E37
"""What is added to 32 random bits at a step: the golden ratio in either half."""
THIRD = 0x9E3779B1

PIECE = 1 << 16
"""Elements worked on at a time on a CPU, where they are to fit in its caches."""
_LARGE_PIECE = 1 << 24


def blocks_of(elements: int) -> int:
    """Return how many blocks, and scales, a tensor has."""
    return -(-elements // BLOCK)


def pieces(elements: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Yield elements and blocks of a tensor, a few blocks at a time: float32 for a piece alone."""
    size = PIECE if device.type == "cpu" else _LARGE_PIECE
    for start in range(0, elements, size):
        stop = min(elements, start + size)
        yield slice(start, stop), slice(start // BLOCK, blocks_of(stop))


def update_by_pieces(
    lists: Sequence[Sequence[torch.Tensor]],
    seed: int,
    update: Callable[..., tuple[torch.Tensor, ...]],
    factors: Callable[[torch.Tensor], tuple[Any, ...]],
) -> None:
    """Update weights and their state, a stretch of whole blocks of one tensor at a time.

    Args:
        lists: weights, gradients, codes, their scales, and last the step counts.
        seed: of the rounding.
        update: given weights, codes, scales, gradients, a `Stream`, where it starts, and factors,
            returns new weights, codes and scales.
        factors: of a tensor, by its step count.
    """
    kinds = (len(lists) - 3) // 2
    for place, (param, grad, *state, step) in enumerate(zip(*lists, strict=True)):
        codes, scales = state[:kinds], state[kinds:]
        numbers, random = factors(step), stream(seed, step)
        weight, gradient = param.reshape(-1), grad.reshape(-1)
        for part, blocks in pieces(len(weight), weight.device):
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

    Over 64 steps the bits of an element go round by the golden ratio from a random start, so that
    roundings up are spread evenly: their sum strays far less than that of independent ones, and is
    as right in the mean.

    Args:
        seed: any integer of 64 bits.
        step: 0-dim float32, a whole number.
        tensor: its place in the list.
        elements: places in the tensor.
    """
    return stream(seed, step).bits(tensor * TENSOR + elements.start, elements.stop - elements.start)


@attrs.frozen
class Stream:
    """The random numbers of one step of a seed."""

    first: torch.Tensor
    """0-dim int64, and so are the others: nothing of it is read on the host."""
    second: torch.Tensor
    turned: torch.Tensor

    def bits(self, start: int | torch.Tensor, number: int) -> torch.Tensor:
        """Return 32 random bits, int64, for `number` positions from `start` on."""
        positions = torch.arange(number, device=self.first.device) + start
        return (keyed_bits(self.first, self.second, positions) + self.turned) & 0xFFFFFFFF


def stream(seed: int, step: torch.Tensor) -> Stream:
    """Return the random numbers of a step; `step` is 0-dim float32, a whole number."""
    count = step.long()
    return Stream(*keys_at(seed, count // WINDOW), (count % WINDOW) * TURN)


def as_float32(*numbers: float) -> list[float]:
    """Return numbers as float32 has them."""
    return torch.tensor(numbers, dtype=torch.float32, device="cpu").tolist()


def fractions(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two float32 numbers in (0, 1) for 32 bits: of their upper and of their lower half."""
    return _fraction(bits >> 16), _fraction(bits & 0xFFFF)


def third(bits: torch.Tensor) -> torch.Tensor:
    """Return 16 bits more, int64, independent of either half alone."""
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
    """Return int8 codes in [-127, 127] and the scales of blocks, values of a code kept exactly.

    A block with an inf or a NaN has NaN for its scale, and decodes to NaN.

    Args:
        values: float32 `[elements]`.
        fraction: of each value, in (0, 1): it is rounded away from zero where its remainder,
            as a share of the distance of the two codes around it, is more.
    """
    scale, inverse = _scales(values.abs(), SIGNED_LEAST, SIGNED_TOP)
    scaled = values.abs() * _spread(inverse, len(values))
    lower = _below(scaled.sqrt(), SIGNED)
    code = lower + (fraction * (2 * lower + 1) < scaled - lower * lower)
    return code.copysign(values).to(torch.int8), scale


def encode_unsigned(
    values: torch.Tensor, fraction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 codes and the scales of blocks, as `encode_signed` does, for values >= 0.

    Only 0 has the code 0: a smaller value than the code 1 stands for has the code 1. What is
    divided by its root is never divided by a zero that rounding made.
    """
    scale, inverse = _scales(values, UNSIGNED_LEAST, UNSIGNED_TOP)
    scaled = values * _spread(inverse, len(values))
    lower = _below(scaled.sqrt().sqrt(), UNSIGNED)
    below, above = lower * lower, (lower + 1) * (lower + 1)
    below, above = below * below, above * above
    code = lower + (fraction * (above - below) < scaled - below)
    return code.maximum((values > 0).float()).to(torch.uint8), scale


def root(values: torch.Tensor) -> torch.Tensor:
    """Return square roots in float32, rounded correctly; those of torch on a CPU may not be."""
    return values.double().sqrt().float()


def stored(values: torch.Tensor, dtype: torch.dtype, bits: torch.Tensor) -> torch.Tensor:
    """Return float32 values as a weight's dtype: as they are, or stochastically as bfloat16.

    Args:
        values: float32.
        dtype: float32 or bfloat16.
        bits: int64 below 2**16, of their shape: what is added below the last place that is kept.
    """
    if dtype == torch.bfloat16:
        raw = values.view(torch.int32)
        rounded = ((raw + bits.to(torch.int32)) & -0x10000).view(torch.float32)
        values = torch.where(values.isfinite(), rounded, values)
    return values.to(dtype)


def _below(codes: torch.Tensor, top: int) -> torch.Tensor:
    """Return the code at or below each; one less where it is whole, whose remainder is then 1."""
    return (codes - 0.5).round().nan_to_num(top - 1.0).clamp(max=top - 1.0)


def _scales(
    magnitudes: torch.Tensor, least: float, top: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale of each block, and its inverse: 0 for a block of zeros."""
    padded = torch.nn.functional.pad(magnitudes, (0, -len(magnitudes) % BLOCK))
    largest = padded.view(-1, BLOCK).amax(1)
    largest = torch.where(largest > 0, largest.clamp(min=least), largest)
    largest = largest.masked_fill(largest == torch.inf, torch.nan)
    return largest / top, top / largest.masked_fill(largest == 0, torch.inf)


def _spread(scale: torch.Tensor, elements: int) -> torch.Tensor:
    return scale.repeat_interleave(BLOCK)[:elements]
