"""Gradients of a chunk's logits as torch's compiler builds them: three passes over the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels import built

from . import in_place
from .chunks import Head, by_chunks

if TYPE_CHECKING:
    from neaptide_kernels.registry import Query


def recipe_of(query: Query) -> built.Recipe | str:
    """Return what a call needs, or the reason why the call is not supported."""
    if query["softcap"] is not None:
        return "it takes no softcap"
    if (query["dtype"] or query["hidden"].dtype) == torch.float64:
        return "it computes in float32"
    return DIFFERENTIATING


def _differentiate(
    logits: torch.Tensor, labels: torch.Tensor, head: Head, with_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.to(head.precise)
    if not with_gradient or min(logits.shape) < built.LEAST:
        return in_place.differentiate(logits, labels, head, with_gradient)
    ignored = torch.tensor(head.ignore_index, device=labels.device)
    (loss,) = built.function(DIFFERENTIATING)(logits, labels, ignored)
    return loss, logits


def _in_logits(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: torch.Tensor
) -> torch.Tensor:
    """Return the summed loss, and write its gradient to `logits`; see `in_place.differentiate`.

    A label is found by comparing places: a scatter would be a pass of its own.
    """
    label = labels[:, None]
    ignored, wrong = label == ignore_index, (label < 0) | (label >= logits.shape[1])
    target = label.masked_fill(ignored | wrong, 0)
    largest = logits.amax(1, keepdim=True)
    powers = (logits - largest).exp()
    total = powers.sum(1, keepdim=True)
    losses = total.log() - (logits.gather(1, target) - largest)
    places = torch.arange(logits.shape[1], device=logits.device)
    gradient = powers / total.masked_fill(wrong, torch.nan) - (places == target).to(powers.dtype)
    logits.copy_(gradient.masked_fill(ignored, 0))
    return losses.masked_fill(wrong, torch.nan).masked_fill(ignored, 0).sum()


def _example() -> tuple[Any, ...]:
    logits = torch.randn(128, 1 << 15, device="cpu")
    return logits, torch.arange(128, device="cpu"), torch.tensor(-100, device="cpu")


DIFFERENTIATING = built.Recipe(
    name="chunked_cross_entropy-gradient",
    function=_in_logits,
    example=_example,
    sizes=({0: "tokens", 1: "words"}, {0: "tokens"}, {}),
)
"""A chunk's loss, and the gradient of its logits in their memory."""

chunked_cross_entropy = by_chunks(_differentiate)
"""Run the op with one float32 buffer per chunk."""
