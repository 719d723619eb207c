"""Weights on a grid: int8 codes times powers of two.

Rounding does not change a value that is already on the grid. So checkpoints, rollbacks and resumes
keep every bit, although only the codes are stored. The largest code of a group is at least 64. So
scales that are powers of two cost up to one bit of precision, compared with arbitrary scales.
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
"""If all magnitudes of a group are smaller than this, the group becomes zeros. `quantize_int8` has
the same limit."""

TRAINABLE = (torch.float32, torch.bfloat16)
"""Dtypes that represent every value of the grid; float16 does not."""


def round_to_grid(weight: torch.Tensor, group: int, seed: int, channel: int = 0) -> WeightCodes:
    """Round a weight to int8 stochastically, so that the mean over many seeds is the weight.

    A scale is a power of two, or NaN for a group that contains an inf or a NaN.

    Args:
        weight: floating, with a multiple of `group` elements.
        group: number of elements that share a scale. The elements of a group are consecutive when
            `channel` is moved to dim 0.
        seed: equal seeds give equal results.
        channel: the dim of output channels.
    """
    values = weight.detach().movedim(channel, 0)
    rows = values.float().reshape(-1, group)
    scale = _power_of_two(rows.abs().amax(1))
    # Each group gets one more element, the largest code. So the scale of `quantize_int8` is 1.
    full = torch.full_like(rows[:, :1], _LARGEST)
    padded = torch.cat([rows / scale[:, None], full], dim=1)
    codes, own, _ = quantize_int8(padded, group + 1, False, True, seed)
    kept = codes.view(-1, group + 1)[:, :group].contiguous().view(values.shape)
    return WeightCodes(kept, scale * own, None, group, channel)


def check_trainable(targets: Iterable[Target]) -> None:
    """Raise ValueError for a weight whose dtype is not in `TRAINABLE`."""
    for target in targets:
        if target.parameter.dtype not in TRAINABLE:
            msg = (
                f"{target.name!r} is {target.parameter.dtype}, but training in int8 needs float32 "
                f"or bfloat16 weights; convert the model, or exclude the module"
            )
            raise ValueError(msg)


def _power_of_two(extent: torch.Tensor) -> torch.Tensor:
    """Return the least power of two p with 127 * p >= `extent`."""
    mantissa, exponent = torch.frexp(extent / _LARGEST)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)  # noqa: PLR2004 - a power of two
    scale = torch.ldexp(torch.ones_like(extent), exponent)
    return torch.where(extent < _SMALLEST, torch.ones_like(scale), scale)
