"""Measures ranges that exclude outliers of a weight, so that other values get finer codes."""

from __future__ import annotations

from typing import Literal

import torch

from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_kernels.int8.reference import in_groups

from .scheme import Ranges, Scheme

Calibration = Literal["minmax", "percentile", "mse"]

_SHARES = tuple(1.0 - step / 40 for step in range(21))
"""Shares of the full range, from 1 to 1/2. The method `mse` tries each of these shares."""


def calibrated(
    weight: torch.Tensor,
    scheme: Scheme,
    how: Calibration,
    *,
    percentile: float = 99.9,
    channel: int = 0,
) -> Ranges:
    """Return the ranges of the groups of `weight`.

    Args:
        weight: floating, any shape. A group with an inf or a NaN is later decoded to NaN.
        scheme: defines the groups.
        channel: the dim of output channels.
        how: `minmax` gives the range of all values. `percentile` gives the range up to a percentile
            of the magnitudes. If the scheme is not symmetric, the upper limit is a percentile of
            the values, and the lower limit is computed in the same way from the negated values.
            `mse` multiplies the full range by a share from 1 to 1/2, in steps of 1/40. It chooses
            the share whose decoded values have the least squared error.
        percentile: in (50, 100].
    """
    group = scheme.group(weight.shape, channel)
    values = weight.detach().movedim(channel, 0).contiguous()
    rows = in_groups(values, group).float()
    low, high = rows.amin(1), rows.amax(1)
    if scheme.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    extremes = Ranges(low, high)
    if how == "minmax":
        return extremes
    if how == "percentile":
        return _percentile(rows, percentile / 100, symmetric=scheme.symmetric)
    return _least_squares(values, extremes, group, affine=not scheme.symmetric)


def _percentile(rows: torch.Tensor, share: float, *, symmetric: bool) -> Ranges:
    if symmetric:
        high = _quantile(rows.abs(), share)
        return Ranges(-high, high)
    return Ranges(-_quantile(-rows, share), _quantile(rows, share))


def _quantile(rows: torch.Tensor, share: float) -> torch.Tensor:
    # torch.quantile takes at most 16M elements, and here no interpolation is needed.
    place = max(1, min(rows.shape[1], round(share * rows.shape[1])))
    return rows.kthvalue(place, dim=1).values


def _least_squares(values: torch.Tensor, extremes: Ranges, group: int, *, affine: bool) -> Ranges:
    rows = in_groups(values, group).float()
    best = torch.full_like(extremes.high, torch.inf)
    chosen = torch.ones_like(extremes.high)
    for share in _SHARES:
        clipped = extremes.scaled(share).clip(values, group)
        codes, scale, zero = quantize_int8(clipped, group, affine)
        decoded = in_groups(dequantize_int8(codes, scale, zero, group), group)
        error = (decoded - rows).square().sum(1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, torch.full_like(chosen, share), chosen)
    return extremes.scaled(chosen)
