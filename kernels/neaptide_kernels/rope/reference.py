"""RoPE in plain torch: the reference, and the provider for every device."""

from __future__ import annotations

import torch


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, transposed: bool = False
) -> torch.Tensor:
    """Return `x * cos + rotated(x) * sin`, where `rotated` of halves `(a, b)` is `(-b, a)`.

    If the tables are narrower than `x`, the rest of each vector stays as it is. Every product and
    sum is rounded to the dtype of `x`, as in eager models.

    Args:
        x: floating `[..., d]`.
        cos: of the dtype of `x`; its shape broadcasts to `[..., r]`, r even and at most d.
        sin: of the shape and dtype of `cos`.
        transposed: multiply with the transposed matrix instead, which is the derivative.

    Returns:
        As `x`, and with its strides if `x` has no gaps.
    """
    width, half = cos.shape[-1], cos.shape[-1] // 2
    y = torch.empty_like(x)
    turned = y[..., :width]
    torch.mul(x[..., :width], cos, out=turned)
    first, second = x[..., :half], x[..., half:width]
    for_first, for_second = sin[..., :half], sin[..., half:]
    if transposed:
        turned[..., :half].add_(second * for_second)
        turned[..., half:].sub_(first * for_first)
    else:
        turned[..., :half].sub_(second * for_first)
        turned[..., half:].add_(first * for_second)
    y[..., width:].copy_(x[..., width:])
    return y
