"""Encodes tensors of whole groups as symmetric int8, in few torch operations.

The results are bitwise equal to those of the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .reference import parameters

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query, Support


def quantizes(query: Query) -> Support:
    """Return whether a call is symmetric, rounds to the nearest code, and has only full groups."""
    if query["affine"] or query["stochastic"]:
        return "it is only for symmetric groups, rounded to nearest"
    return _whole(query["x"].elements, query["group"])


def dequantizes(query: Query) -> Support:
    """Return whether a call has only full groups and no zero points."""
    if query["zero"] is not None:
        return "it is only for symmetric groups"
    return _whole(query["codes"].elements, query["group"])


def quantize(
    x: torch.Tensor, group: int, affine: bool, stochastic: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `quantize_int8` with one float32 buffer of the input's size."""
    del affine, stochastic, seed
    rows = x.reshape(-1, group).float()
    scaled = rows.abs()
    largest = scaled.amax(1)
    scale, inverse, zero = parameters(-largest, largest, affine=False)
    torch.mul(rows, inverse[:, None], out=scaled).round_()
    codes = scaled.masked_fill_(scale.isnan()[:, None], 0).to(torch.int8)
    return codes.view(x.shape), scale, zero.to(torch.int8)


def dequantize(
    codes: torch.Tensor, scale: torch.Tensor, zero: None, group: int, dtype: torch.dtype
) -> torch.Tensor:
    """Run `dequantize_int8` as one multiplication."""
    del zero
    values = codes.reshape(-1, group) * scale[:, None]
    return values.to(dtype).view(codes.shape)


def _whole(elements: int, group: int) -> Support:
    if elements == 0 or elements % group:
        return "the last group is shorter than the others"
    return True
