"""Add scaled deltas to weights in plain torch: the reference for the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from neaptide_kernels.counter_random import random_bits
from neaptide_kernels.int8.reference import dequantize_int8
from neaptide_kernels.parts import PIECE, parts_of
from neaptide_kernels.registry import takes

STRIDE_BITS = 40
"""The random numbers of tensor number `place` start at position `place << STRIDE_BITS`."""
_LARGE_PIECE = 1 << 22
"""Elements rounded at a time on other devices than a CPU: some 0.2 GiB of temporary tensors."""
_SMALLEST_NORMAL = 2.0**-14
_HALF_DROPS = 13
_BFLOAT16_DROPS = 16


class FloatDeltas(NamedTuple):
    """The arguments of `apply_delta`."""

    params: Sequence[torch.Tensor]
    """Floating, any shapes."""
    deltas: Sequence[torch.Tensor]
    """Floating; `n` sets, one after the other. A set has a delta of equal shape for each weight."""
    scale: torch.Tensor
    """Floating; 0-dim, or `[n]` with one scale for each set."""
    stochastic: bool = False
    """Round bfloat16 and float16 weights stochastically, so that the mean of many roundings is the
    exact sum. `counter_random` computes the random bits from the seed and the element's place."""
    seed: int = 0
    """Seed of stochastic rounding."""


class Int8Deltas(NamedTuple):
    """The arguments of `apply_int8_delta`."""

    params: Sequence[torch.Tensor]
    """Floating, any shapes."""
    codes: Sequence[torch.Tensor]
    """int8; `n` sets, one after the other. A set has codes of equal shape for each weight."""
    code_scales: Sequence[torch.Tensor]
    """float32 `[groups]` for each tensor of `codes`."""
    scale: torch.Tensor
    """Floating; 0-dim, or `[n]` with one scale for each set."""
    group: int
    """Number of elements that share a scale."""
    stochastic: bool = False
    """Round stochastically, as described in `FloatDeltas`."""
    seed: int = 0
    """Seed of stochastic rounding."""


@takes(FloatDeltas)
def apply_delta(call: FloatDeltas) -> None:
    """Add `scale * delta` to every weight, in place.

    Arithmetic is float32, or float64 for float64 weights. Several deltas of one weight are added
    one after the other, and each product and each sum is rounded. At the end the sum is rounded
    once to the weight's dtype, to the nearest value or stochastically. Stochastic rounding drops 13
    bits for float16 and 16 bits for bfloat16. The fraction that the dropped bits represent is the
    probability of rounding away from zero. NaN and infinity propagate as in any sum. A number that
    rounds beyond the dtype's largest number becomes infinite.
    """
    terms = by_weight(call.params, call.deltas, call.scale)
    for place, (weight, deltas) in enumerate(terms):
        add(weight, place, deltas, call.seed if call.stochastic else None)


@takes(Int8Deltas)
def apply_int8_delta(call: Int8Deltas) -> None:
    """Add `scale * delta` to every weight in place, where deltas are given as int8 codes.

    A delta is `dequantize_int8(codes, code_scales, None, group)`. The kernel does not store the
    decoded delta. Everything else is as in `apply_delta`.
    """
    deltas = [
        dequantize_int8(each, sizes, None, call.group)
        for each, sizes in zip(call.codes, call.code_scales, strict=True)
    ]
    apply_delta(call.params, deltas, call.scale, call.stochastic, call.seed)


def by_weight(
    params: Sequence[torch.Tensor], deltas: Sequence[torch.Tensor], scale: torch.Tensor
) -> Iterator[tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]]:
    """Yield each weight with the deltas of this weight and the scale of each delta."""
    sets = len(deltas) // len(params) if params else 0
    scales = scale.expand(sets).unbind()
    for place, weight in enumerate(params):
        yield weight, list(zip(deltas[place :: len(params)], scales, strict=True))


def add(
    weight: torch.Tensor,
    place: int,
    terms: Sequence[tuple[torch.Tensor, torch.Tensor]],
    seed: int | None,
) -> None:
    """Add deltas, each with a scale, to a weight. Without a seed, the sum goes to the nearest."""
    flat = weight.reshape(-1)
    pairs = [(delta.reshape(-1), scale) for delta, scale in terms]
    rounding = seed is not None and weight.dtype in {torch.bfloat16, torch.float16}
    for part in parts_of(flat, PIECE, _LARGE_PIECE) if rounding else [slice(None)]:
        total = _sum(flat[part], [(delta[part], scale) for delta, scale in pairs])
        if seed is not None and rounding:
            first = place << STRIDE_BITS
            positions = torch.arange(first + part.start, first + part.stop, device=weight.device)
            total = rounded(total, weight.dtype, random_bits(seed, positions))
        flat[part] = total
    if not weight.is_contiguous():
        weight.copy_(flat.view(weight.shape))


def _sum(weight: torch.Tensor, terms: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    wide = torch.promote_types(weight.dtype, torch.float32)
    total = weight.to(wide, copy=True)
    for delta, scale in terms:
        total.add_(delta.to(wide) * scale.to(wide))
    return total


def rounded(values: torch.Tensor, dtype: torch.dtype, bits: torch.Tensor) -> torch.Tensor:
    """Round float32 `values` stochastically to numbers of `dtype`; return float32.

    `dtype` is bfloat16 or float16. There are 32 random bits for each value.
    """
    dropped = _HALF_DROPS if dtype == torch.float16 else _BFLOAT16_DROPS
    magnitude = values.abs()
    # Below its smallest normal number, float16 has the spacing of the lowest normal binade.
    lifted = (magnitude < _SMALLEST_NORMAL) & (dtype == torch.float16)
    lift = lifted.to(values.dtype) * _SMALLEST_NORMAL
    raw = (magnitude + lift).view(torch.int32) + (bits >> (32 - dropped)).to(torch.int32)
    cut = (raw & -(1 << dropped)).view(torch.float32) - lift
    return torch.where(values.isfinite(), cut.copysign(values), values)
