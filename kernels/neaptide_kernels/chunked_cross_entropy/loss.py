"""Chunked cross-entropy for loss functions: any leading shape, autocast, mean or sum."""

from __future__ import annotations

from typing import Literal

import torch

from . import op
from .checks import check, look_at_labels


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    chunk: int = 1024,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the cross-entropy of `hidden @ weight.T + bias` in nats, a scalar.

    Logits are computed in the tensors' dtype (autocast's under autocast), everything else in at
    least float32, which is the result's dtype. The gradients are computed together with the loss:
    the head runs once, and the memory held until the backward is that of the gradients, with the
    weight's in float32. The host waits once, to check the labels, after all work is queued. In
    compiled code a label out of range makes the loss NaN instead.

    Args:
        hidden: floating `[..., d]`.
        weight: `[vocabulary, d]`, of the same dtype.
        labels: int64 `[...]`, each a row of `weight` or `ignore_index`. The caller must shift them
            by one.
        bias: `[vocabulary]`.
        chunk: number of tokens whose logits exist at the same time.
        ignore_index: the label of tokens that are ignored.
        reduction: over the tokens that are not ignored; the mean of none is NaN.
        softcap: limits each logit `z` to `softcap * tanh(z / softcap)`.

    Raises:
        ValueError: the arguments do not match, or a label is not a row of `weight`.
    """
    kind = hidden.device.type
    autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    cast = autocasts and hidden.dtype != torch.float64
    check(hidden, weight, bias, labels, chunk, softcap, cast=cast)
    if reduction not in ("mean", "sum"):
        msg = f"reduction must be 'mean' or 'sum' (got {reduction!r})"
        raise ValueError(msg)
    complain = look_at_labels(labels, ignore_index, len(weight))
    if not labels.is_cuda:
        complain()
    with_gradients = torch.is_grad_enabled()
    total: torch.Tensor = op.chunked_cross_entropy(
        hidden.reshape(labels.numel(), hidden.shape[-1]),
        weight,
        bias,
        labels.reshape(-1),
        chunk,
        ignore_index,
        softcap,
        torch.get_autocast_dtype(kind) if cast else None,
        with_gradients and hidden.requires_grad,
        with_gradients and weight.requires_grad,
        with_gradients and bias is not None and bias.requires_grad,
    )[0]
    if labels.is_cuda:
        complain()
    if reduction == "sum":
        return total
    count = (labels != ignore_index).sum()
    # Division by a count of 0 would also make the zero gradients NaN.
    return (total / count.clamp(min=1)).masked_fill(count == 0, torch.nan)
