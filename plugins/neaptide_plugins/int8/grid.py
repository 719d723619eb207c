"""Weights on a grid that holds them exactly: int8 codes times powers of two.

What was rounded once is rounded to itself ever after, so that a checkpoint, a rollback and a resume
keep every bit although nothing but the codes is held. The greatest code of a group is 64 at least:
up to one bit less than scales of any size would give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.int8 import quantize_int8

from .scheme import WeightCodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .targets import Target

_LARGEST = 127.0
_SMALLEST = 2.0**-120
"""Groups of smaller magnitudes are zeros, as for the op."""

TRAINABLE = (torch.float32, torch.bfloat16)
"""A float16 does not hold every code times every power of two that it needs."""


def round_to_grid(weight: torch.Tensor, group: int, seed: int, channel: int = 0) -> WeightCodes:
    """Round to int8 stochastically: the mean over many seeds is the weight.

    Scales are powers of two, NaN for a group with an inf or a NaN.

    Args:
        weight: floating, of a multiple of `group` elements.
        group: elements that share a scale, consecutive once `channel` is the first dim.
        seed: the same one rounds the same.
        channel: the dim of output channels.
    """
    values = weight.detach().movedim(channel, 0)
    rows = values.float().reshape(-1, group)
    scale = _power_of_two(rows.abs().amax(1))
    # One more element of the largest code makes the op's own scale exactly 1.
    full = torch.full_like(rows[:, :1], _LARGEST)
    padded = torch.cat([rows / scale[:, None], full], dim=1)
    codes, own, _ = quantize_int8(padded, group + 1, False, True, seed)
    kept = codes.view(-1, group + 1)[:, :group].contiguous().view(values.shape)
    return WeightCodes(kept, scale * own, None, group, channel)


def check_trainable(targets: Iterable[Target]) -> None:
    """Raise ValueError for a weight whose dtype does not hold what is on the grid."""
    for target in targets:
        if target.parameter.dtype not in TRAINABLE:
            msg = (
                f"{target.name!r} is {target.parameter.dtype}, and training in int8 needs float32 "
                f"or bfloat16 weights; convert the model, or exclude the module"
            )
            raise ValueError(msg)


def _power_of_two(extent: torch.Tensor) -> torch.Tensor:
    """Return the least power of two by which 127 codes reach `extent`."""
    mantissa, exponent = torch.frexp(extent / _LARGEST)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)  # noqa: PLR2004 - a power of two
    scale = torch.ldexp(torch.ones_like(extent), exponent)
    return torch.where(extent < _SMALLEST, torch.ones_like(scale), scale)
