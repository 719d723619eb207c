"""fp8 with one scale a tensor: e4m3 for weights and activations, e5m2 for gradients."""

from __future__ import annotations

import torch

DTYPE = torch.float8_e4m3fn
"""Of weights and activations: 3 bits of mantissa, largest number 448."""
GRADIENT_DTYPE = torch.float8_e5m2
"""Of gradients: 2 bits of mantissa, 32 powers of two."""

MULTIPLE = 16
"""What every size but the rows of the first factor must be divisible by, for CUDA's kernel."""

_SMALLEST = 2.0**-100
"""Extent below which all is zero: its scale, or what divides by it, would leave float32."""


def scaled(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x` in fp8, rounded to the nearest, and the float32 scale (0-dim) to multiply it by.

    The largest magnitude becomes the dtype's largest number. Zeros stay zeros; where `x` holds inf
    or NaN the scale is NaN, so that whatever is computed of it is, too.
    """
    largest = torch.finfo(dtype).max
    extent = x.abs().amax().float() if x.numel() else torch.zeros((), device=x.device)
    extent = torch.where(extent < _SMALLEST, 1.0, extent)
    extent = torch.where(extent.isinf(), torch.nan, extent)
    # The cast does not saturate everywhere; rounding up must not step over the largest number.
    values = x.to(torch.float32, copy=True).mul_(largest / extent).clamp_(-largest, largest)
    return values.nan_to_num_(0.0).to(dtype), extent / largest


def fp8_product(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    a_dtype: torch.dtype = DTYPE,
    b_dtype: torch.dtype = DTYPE,
) -> torch.Tensor:
    """Return `a @ b.T` with both factors in fp8, added up in float32.

    Args:
        a: `[M, K]`, floating.
        b: `[N, K]`, floating; K and N divisible by 16.
        out_dtype: of the result; float32, bfloat16 or float16.
        a_dtype: what `a` is rounded to.
        b_dtype: what `b` is rounded to; not both may be e5m2.

    Returns:
        `[M, N]` of `out_dtype`; NaN throughout where a factor holds inf or NaN.

    Raises:
        RuntimeError: torch has no such product for these sizes, dtypes or this device; for the
            last of them `fp8_missing` says so beforehand.
    """
    left, left_scale = scaled(a, a_dtype)
    right, right_scale = scaled(b, b_dtype)
    product: torch.Tensor = torch._scaled_mm(  # noqa: SLF001 - torch's only entry before 2.12
        left.contiguous(),
        right.contiguous().t(),
        scale_a=left_scale,
        scale_b=right_scale,
        out_dtype=out_dtype,
    )
    return product
