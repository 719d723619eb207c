"""RMSNorm and LayerNorm in plain torch: the references for the kernels."""

from __future__ import annotations

import torch


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of means and sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    narrow_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x / sqrt(mean(x**2) + eps)` times a weight, and `1 / sqrt(mean(x**2) + eps)`.

    Means are over the last dimension and in at least float32.

    Args:
        x: floating `[..., d]`.
        weight: floating `[d]`, or None for ones.
        eps: added to the mean of the squares.
        offset: added to the weight. Gemma's weights are offsets from 1.
        narrow_first: round to the dtype of `x` before the product with the weight, as Llama does.
            Then the result has the dtype of `weight * x`, and `offset` must be 0. Otherwise the
            product is rounded once, to the dtype of `x`.

    Returns:
        `[..., d]`, contiguous; and `[...]` in float32 (float64 for float64).
    """
    wide = x.to(precise(x.dtype))
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    y = wide * rstd
    if weight is None:
        y = y.to(x.dtype)
    elif narrow_first:
        y = weight * y.to(x.dtype)
    else:
        y = (y * shifted(weight, offset, y.dtype)).to(x.dtype)
    return y.contiguous(), rstd.squeeze(-1)


def shifted(weight: torch.Tensor, offset: float, dtype: torch.dtype) -> torch.Tensor:
    """Return `offset + weight` in a dtype."""
    return offset + weight.to(dtype) if offset else weight.to(dtype)


def rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float = 0.0,
    narrow_first: bool = False,
    for_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `x` and `weight` of `rms_norm`, from its second result.

    The gradient of the weight is empty if there is no weight or without `for_weight`.
    """
    kind = precise(x.dtype)
    wide, rstd = x.to(kind), rstd.unsqueeze(-1)
    normal = wide * rstd
    of_weight = x.new_empty(0)
    of_normal = gradient.to(kind)
    if weight is not None:
        if for_weight:
            factor = normal.to(x.dtype).to(kind) if narrow_first else normal
            of_weight = (of_normal * factor).reshape(-1, len(weight)).sum(0).to(weight.dtype)
        of_normal = of_normal * shifted(weight, offset, kind)
    along = (of_normal * normal).mean(-1, keepdim=True)
    return ((of_normal - normal * along) * rstd).to(x.dtype).contiguous(), of_weight


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the LayerNorm of `x` over its last dimension, the means, and 1 / the deviations.

    Args:
        x: floating `[..., d]`.
        weight: floating `[d]`, or None for ones.
        bias: of the weight's shape and dtype, or None for zeros.
        eps: added to the variance.

    Returns:
        `[..., d]` of the dtype of `x`, contiguous; and twice `[...]` in float32 (float64 for
        float64). On a CPU torch rounds the means of 16-bit tensors to 16 bits.
    """
    wide = x.to(precise(x.dtype))
    mean = wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt((wide - mean).pow(2).mean(-1, keepdim=True) + eps)
    y = (wide - mean) * rstd
    if weight is not None:
        y = y * weight.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.to(x.dtype).contiguous(), mean.squeeze(-1), rstd.squeeze(-1)


def layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    for_weight: bool = True,
    for_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of `x`, of the weight and of the bias; unwanted gradients are empty.

    Gradients of the weight and the bias have the dtype of the weight. Without a weight they are
    empty, because there is no bias either.
    """
    kind = precise(x.dtype)
    normal = (x.to(kind) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    of_normal = gradient.to(kind)
    of_weight, of_bias = x.new_empty(0), x.new_empty(0)
    if weight is not None:
        width = len(weight)
        if for_weight:
            of_weight = (of_normal * normal).reshape(-1, width).sum(0).to(weight.dtype)
        if for_bias:
            of_bias = of_normal.reshape(-1, width).sum(0).to(weight.dtype)
        of_normal = of_normal * weight.to(kind)
    along = (of_normal * normal).mean(-1, keepdim=True)
    of_x = (of_normal - of_normal.mean(-1, keepdim=True) - normal * along) * rstd.unsqueeze(-1)
    return of_x.to(x.dtype).contiguous(), of_weight, of_bias
