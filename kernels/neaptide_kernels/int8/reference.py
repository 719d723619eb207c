"""Int8 quantization of groups of adjacent elements in plain torch: the kernels' reference."""

from __future__ import annotations

import torch

from neaptide_kernels.counter_random import uniform

SYMMETRIC = 127
SMALLEST = 2.0**-120
"""If all magnitudes of a group are below this number, the group's codes are 0: 127 divided by such
a magnitude would overflow float32."""


def quantize_int8(
    x: torch.Tensor,
    group: int,
    affine: bool = False,
    stochastic: bool = False,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize groups of `group` consecutive elements, in the order of `x.flatten()`.

    Symmetric codes are in [-127, 127] and represent `code * scale`. Affine codes are in [-128, 127]
    and represent `(code - zero) * scale`; the range that they represent includes 0. Rounding is
    half to even or stochastic. In stochastic rounding, the probability of rounding up is the
    fractional part of `x / scale`. `counter_random` computes the random bits from the seed and the
    element's position. Arithmetic is float32. A group with an inf or a NaN has the scale NaN and
    decodes to NaN.

    Args:
        x: floating, any shape.
        group: number of elements in a group; the last group may have fewer elements.
        affine: use affine codes, which are finer for a group that is not centred on 0.
        stochastic: round stochastically, so that the mean of many results is the exact value.
        seed: seed of stochastic rounding.

    Returns:
        codes, int8, of the shape of `x`; scale, float32 `[groups]`; zero, int8 `[groups]`. For
        symmetric codes, zero is 0.
    """
    rows = in_groups(x, group)
    codes, scale, zero = encoded(rows, affine=affine, seed=seed if stochastic else None)
    return codes.view(-1)[: x.numel()].clone().view(x.shape), scale, zero


def dequantize_int8(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return `(code - zero) * scale` as `dtype`, in the shape of `codes`; computed in float32.

    Args:
        codes: int8, any shape.
        scale: float32 `[groups]`.
        zero: int8 `[groups]`; None means 0.
        group: the group size of the quantization.
        dtype: dtype of the result.
    """
    values = decoded(in_groups(codes, group), scale, zero, dtype)
    return values.view(-1)[: codes.numel()].clone().view(codes.shape)


def encoded(
    rows: torch.Tensor, *, affine: bool, seed: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and zeros of rows, each a group; without a seed, half to even."""
    rows = rows.float()
    scale, inverse, zero = parameters(rows.amin(1), rows.amax(1), affine=affine)
    scaled = rows * inverse[:, None]
    if seed is None:
        scaled = scaled.round()
    else:
        positions = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
        scaled = _rounded(scaled, uniform(seed, positions))
    codes = (scaled + zero[:, None]).clamp(-128 if affine else -SYMMETRIC, 127)
    codes = codes.masked_fill(scale.isnan()[:, None], 0).to(torch.int8)
    return codes, scale, zero.to(torch.int8)


def decoded(
    rows: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return the numbers that rows of codes represent."""
    numbers = rows.float()
    if zero is not None:
        numbers = numbers - zero[:, None].float()
    return (numbers * scale[:, None]).to(dtype)


def _rounded(x: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """Round up where `draw`, a number in [0, 1), is below the fractional part, else down.

    The floor of `x + draw` is not the same: the float32 sum may round up to the next whole number.
    """
    below = x.floor()
    return below + (draw < x - below)


def parameters(
    low: torch.Tensor, high: torch.Tensor, *, affine: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scales, the inverses of the scales and the zero points of groups, all float32.

    The results are computed from each group's least and largest element. The inverse for a group of
    zeros is 0. The scale and the inverse for a group with an inf or a NaN are NaN.
    """
    if affine:
        low, high = low.clamp(max=0), high.clamp(min=0)
        # Both extremes are halved, because their difference may exceed the largest float32 number.
        extent, codes = high * 0.5 - low * 0.5, 127.5
    else:
        extent, codes = torch.maximum(-low, high), float(SYMMETRIC)
    extent = extent.masked_fill(extent < SMALLEST, 0)
    extent = extent.masked_fill(extent.isinf(), torch.nan)
    # An infinite divisor gives the inverse 0, so nothing is divided by zero.
    divisor = extent.masked_fill(extent == 0, torch.inf)
    # CUDA would multiply by the inverse of a number, which rounds otherwise.
    scale, inverse = extent / extent.new_full((), codes), codes / divisor
    zero = torch.zeros_like(scale)
    if affine:
        zero = (-128 - (low * inverse).round()).clamp(-128, 127)
        zero = zero.masked_fill(zero.isnan() | (extent == 0), 0)
    return scale, inverse, zero


def in_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """Return the elements of `x` as `[groups, group]`, padded with zeros.

    If `group` is larger than the number of elements, the result has one row of all elements.
    """
    flat = x.reshape(-1)
    group = min(group, max(1, len(flat)))
    missing = -len(flat) % group
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, group)
