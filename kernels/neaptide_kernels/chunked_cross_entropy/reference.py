"""Head and cross-entropy by chunks of tokens in plain torch: the reference for the kernels."""

from __future__ import annotations

import torch

from .chunks import Head, sums


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    chunk: int = 1024,
    ignore_index: int = -100,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    for_hidden: bool = False,
    for_weight: bool = False,
    for_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the summed cross-entropy of `hidden @ weight.T + bias`, and the loss's gradients.

    Logits are computed in `dtype`, everything else in at least float32. A token is invalid if its
    label is neither a row of `weight` nor `ignore_index`, if its logits contain a NaN or inf, or if
    all its logits are -inf. An invalid token makes the loss and the token's gradients NaN. An
    ignored token is never invalid. But if `hidden` is NaN at an ignored token, the gradient of
    `weight` is NaN, because this gradient is a matrix product over all tokens.

    The backward of the loss scales the returned gradients in place, so the caller must not keep
    these gradients.

    Args:
        hidden: floating `[tokens, d]`.
        weight: `[vocabulary, d]`.
        bias: `[vocabulary]` or None.
        labels: int64 `[tokens]`.
        chunk: number of tokens whose logits exist at the same time.
        ignore_index: the label of tokens that are ignored.
        softcap: limits each logit `z` to `softcap * tanh(z / softcap)`.
        dtype: dtype of the logits; None means the dtype of `hidden`.
        for_hidden: compute the gradient of `hidden`.
        for_weight: compute the gradient of `weight`.
        for_bias: compute the gradient of `bias`.

    Returns:
        The loss, a float32 or float64 scalar, and the gradients of `hidden` (in `dtype`), of
        `weight` and of `bias` (both in the loss's dtype). An unwanted gradient has the shape `[0]`.
    """
    head = Head(ignore_index, softcap, dtype or hidden.dtype)
    wanted = (for_hidden, for_weight, for_bias)
    return sums(hidden, weight, bias, labels, chunk, head, wanted, differentiate)


def differentiate(
    logits: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    with_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss of logits `[tokens, vocabulary]`, and the gradient of this loss."""
    logits = logits.to(head.precise)
    ignored = (labels == head.ignore_index)[:, None]
    wrong = ((labels < 0) | (labels >= logits.shape[1]))[:, None]
    targets = labels[:, None].masked_fill(ignored | wrong, 0)
    slope = torch.ones_like(logits)
    if head.softcap is not None:
        limited = torch.tanh(logits / head.softcap)
        logits, slope = limited * head.softcap, 1 - limited * limited
    logs = logits.log_softmax(1)
    losses = -logs.gather(1, targets).masked_fill(wrong, torch.nan).masked_fill(ignored, 0)
    if not with_gradient:
        return losses.sum(), logits
    gradient = logs.exp().scatter_add(1, targets, -torch.ones_like(losses)) * slope
    return losses.sum(), gradient.masked_fill(wrong, torch.nan).masked_fill(ignored, 0)
