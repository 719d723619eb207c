"""fp8 products with one scale per tensor: e4m3 for weights and activations, e5m2 for gradients."""

from __future__ import annotations

import torch

DTYPE = torch.float8_e4m3fn
"""Dtype of weights and activations: 3 bits of mantissa, largest number 448."""
GRADIENT_DTYPE = torch.float8_e5m2
"""Dtype of gradients: 2 bits of mantissa, 5 of exponent."""

MULTIPLE = 16
"""Divisor that CUDA's kernel requires of K and N (see `fp8_product`)."""

_SMALLEST = 2.0**-100
"""If the largest magnitude of a tensor is below this limit, all its fp8 values are 0. Otherwise
`largest / extent` could overflow."""


def scaled(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors: `x` in fp8, rounded to nearest, and its scale, 0-dim float32.

    The fp8 values times the scale are approximately `x`. The largest magnitude of `x` becomes the
    largest number of the fp8 dtype. Zeros stay zeros. If `x` contains inf or NaN, the scale is NaN,
    so every product with this scale is NaN.
    """
    largest = torch.finfo(dtype).max
    extent = x.abs().amax().float() if x.numel() else torch.zeros((), device=x.device)
    extent = torch.where(extent < _SMALLEST, 1.0, extent)
    extent = torch.where(extent.isinf(), torch.nan, extent)
    # Rounding may exceed the largest number, and the cast does not saturate on every device.
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
    """Return `a @ b.T` with both factors in fp8, accumulated in float32.

    Args:
        a: `[M, K]`, floating.
        b: `[N, K]`, floating; K and N divisible by 16.
        out_dtype: dtype of the result; float32, bfloat16 or float16.
        a_dtype: the fp8 dtype of `a`.
        b_dtype: the fp8 dtype of `b`; at most one of the two may be e5m2.

    Returns:
        `[M, N]` of `out_dtype`; all NaN if a factor holds inf or NaN.

    Raises:
        RuntimeError: torch has no such product for these sizes or dtypes, or on this device;
            `fp8_missing` checks the device beforehand.
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
