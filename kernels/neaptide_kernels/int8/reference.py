"""Int8 by groups of neighbouring elements, in plain torch: what the kernels must compute."""

from __future__ import annotations

import torch

from neaptide_kernels.counter_random import uniform

SYMMETRIC = 127
SMALLEST = 2.0**-120
"""A group of smaller magnitudes than this is stored as zeros: 127 over them must be finite."""


def quantize_int8(
    x: torch.Tensor,
    group: int,
    affine: bool = False,
    stochastic: bool = False,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize groups of `group` consecutive elements, in the order of `x.flatten()`.

    Symmetric codes lie in [-127, 127] and stand for `code * scale`; affine ones in [-128, 127] and
    stand for `(code - zero) * scale`, over a range that always holds 0. Rounding is half to even,
    or stochastic: up with the probability of the fraction, by `counter_random` at the element's
    position. Arithmetic is float32. A group with an inf or a NaN has NaN for its scale and decodes
    to NaN.

    Args:
        x: floating, any shape.
        group: elements in a group; the last one may have fewer.
        affine: use all codes for a group that is not centred on 0.
        stochastic: round so that the mean of many roundings is the value.
        seed: of stochastic rounding.

    Returns:
        codes int8 of the shape of `x`; scale float32 `[groups]`; zero int8 `[groups]`, zeros where
        symmetric.
    """
    rows = in_groups(x, group).float()
    scale, inverse, zero = parameters(rows.amin(1), rows.amax(1), affine=affine)
    scaled = rows * inverse[:, None]
    if stochastic:
        positions = torch.arange(rows.numel(), device=x.device).view(rows.shape)
        scaled = (scaled + uniform(seed, positions)).floor()
    else:
        scaled = scaled.round()
    codes = (scaled + zero[:, None]).clamp(-128 if affine else -SYMMETRIC, 127)
    codes = codes.masked_fill(scale.isnan()[:, None], 0).to(torch.int8)
    return codes.view(-1)[: x.numel()].clone().view(x.shape), scale, zero.to(torch.int8)


def dequantize_int8(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return `(code - zero) * scale`, multiplied in float32, as a `dtype` of the shape of `codes`.

    Args:
        codes: int8, any shape.
        scale: float32 `[groups]`.
        zero: int8 `[groups]`; None is 0.
        group: as it was quantized with.
        dtype: of the result.
    """
    rows = in_groups(codes, group).float()
    if zero is not None:
        rows = rows - zero[:, None].float()
    values = (rows * scale[:, None]).to(dtype)
    return values.view(-1)[: codes.numel()].clone().view(codes.shape)


def parameters(
    low: torch.Tensor, high: torch.Tensor, *, affine: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scale, its inverse and the zero point of groups by their extremes, all float32.

    The inverse of a group of zeros is 0; scale and inverse of one with an inf or NaN are NaN.
    """
    if affine:
        low, high = low.clamp(max=0), high.clamp(min=0)
        # Half of it: the widest range of float32 is more than its largest number.
        extent, codes = high * 0.5 - low * 0.5, 127.5
    else:
        extent, codes = torch.maximum(-low, high), float(SYMMETRIC)
    extent = extent.masked_fill(extent < SMALLEST, 0)
    extent = extent.masked_fill(extent.isinf(), torch.nan)
    # Divided by itself a tensor gives no infinity where nothing is to be scaled.
    divisor = extent.masked_fill(extent == 0, torch.inf)
    scale, inverse = extent / codes, codes / divisor
    zero = torch.zeros_like(scale)
    if affine:
        zero = (-128 - (low * inverse).round()).clamp(-128, 127)
        zero = zero.masked_fill(zero.isnan() | (extent == 0), 0)
    return scale, inverse, zero


def in_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """Return `[groups, group]` of the elements of `x`, zeros after the last.

    A group of more elements than there are is as wide as there are.
    """
    flat = x.reshape(-1)
    group = min(group, max(1, len(flat)))
    missing = -len(flat) % group
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, group)
