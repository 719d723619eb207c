"""Gradients of a chunk's logits, computed in the logits' memory in plain torch."""

from __future__ import annotations

import torch

from .chunks import Head, by_chunks


def differentiate(
    logits: torch.Tensor,
    labels: torch.Tensor,
    head: Head,
    with_gradient: bool,  # noqa: FBT001 - one of several of this signature
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss, and the gradient of this loss in the dtype `head.precise`.

    The gradient overwrites the logits if they have this dtype, otherwise a copy of the logits.
    """
    logits = logits.to(head.precise)
    ignored = (labels == head.ignore_index)[:, None]
    wrong = ((labels < 0) | (labels >= logits.shape[1]))[:, None]
    targets = labels[:, None].masked_fill(ignored | wrong, 0)
    slope = None
    if head.softcap is not None:
        logits.div_(head.softcap).tanh_()
        slope = (logits * logits).neg_().add_(1) if with_gradient else None
        logits.mul_(head.softcap)
    logits -= logits.amax(1, keepdim=True)
    chosen = logits.gather(1, targets)
    total = logits.exp_().sum(1, keepdim=True)
    losses = (total.log() - chosen).masked_fill_(wrong, torch.nan).masked_fill_(ignored, 0)
    if with_gradient:
        # A divisor of NaN saves a pass over the logits.
        divisor = total.masked_fill(wrong, torch.nan)
        logits.div_(divisor).scatter_add_(1, targets, -torch.ones_like(total))
        if slope is not None:
            logits.mul_(slope)
        logits.masked_fill_(ignored, 0)
    return losses.sum(), logits


chunked_cross_entropy = by_chunks(differentiate)
"""Run the op with one float32 buffer per chunk, or two with a softcap."""
