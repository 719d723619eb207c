"""Chunked cross-entropy for loss functions: any leading shape, autocast, mean or sum."""

from __future__ import annotations

from typing import Literal

import torch

from . import op
from .checks import check, look_at_labels, numbers
from .whole import cross_entropy, is_small


def _may_autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind)


# As `torch.compiler.assume_constant_result` does, which imports the compiler. torch 2.11 cannot
# compile the function.
_may_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - see above


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

    Logits are computed in the dtype of `hidden`; under autocast, in the autocast dtype. Everything
    else is computed in float32, or in float64 for float64 logits; so is the loss. The gradients are
    computed together with the loss, so the head runs only once. Until the backward, only the
    gradients are kept in memory; the gradient of `weight` is at least float32. After all work is
    queued, the host waits once to check the labels. Compiled code does not check the labels: a
    label out of range makes the loss NaN.

    On a CPU, up to `whole.MOST` logits (a million) are computed at once by torch's own loss,
    whatever `chunk` is: it is faster, and holds them three times, in at most 12 MiB of float32 (24
    of float64). Then there are second derivatives, which the loss of more logits refuses. A call
    with a frozen weight, with float16 or under autocast is always computed in chunks.

    Args:
        hidden: floating `[..., d]`.
        weight: `[vocabulary, d]`, of the dtype of `hidden`.
        labels: int64 `[...]`; each is the number of a row of `weight`, or `ignore_index`. The
            caller must shift the labels by one token.
        bias: `[vocabulary]`.
        chunk: number of tokens whose logits exist at the same time.
        ignore_index: the label of tokens that are ignored.
        reduction: mean or sum over the tokens that are not ignored. If all tokens are ignored,
            the mean is NaN.
        softcap: limits each logit `z` to `softcap * tanh(z / softcap)`.

    Raises:
        ValueError: the arguments do not match, or a label is not a row of `weight`.
    """
    if reduction not in ("mean", "sum"):
        msg = f"reduction must be 'mean' or 'sum' (got {reduction!r})"
        raise ValueError(msg)
    if is_small(hidden, weight, bias, labels):
        numbers(chunk, softcap)
        try:
            return cross_entropy(hidden, weight, bias, labels, ignore_index, reduction, softcap)
        except (RuntimeError, IndexError):  # the checks below take longer than a small loss
            check(hidden, weight, bias, labels, chunk, softcap, cast=False)
            look_at_labels(labels, ignore_index, len(weight))()
            raise
    kind = hidden.device.type
    autocasts = _may_autocast(kind) and torch.is_autocast_enabled(kind)
    cast = autocasts and hidden.dtype != torch.float64
    check(hidden, weight, bias, labels, chunk, softcap, cast=cast)
    complain = look_at_labels(labels, ignore_index, len(weight))
    on_cpu = labels.device.type == "cpu"
    if on_cpu:
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
    if not on_cpu:
        complain()
    if reduction == "sum":
        return total
    count = (labels != ignore_index).sum()
    # If all tokens are ignored, a division by their number 0 would make the zero gradients NaN.
    return (total / count.clamp(min=1)).masked_fill(count == 0, torch.nan)
