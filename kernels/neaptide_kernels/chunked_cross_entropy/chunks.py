"""The loop over chunks of tokens. All providers use this loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen
class Head:
    """The settings for computing a loss from a chunk's logits."""

    ignore_index: int
    softcap: float | None
    dtype: torch.dtype
    """Dtype of the logits."""

    @property
    def precise(self) -> torch.dtype:
        """Dtype of everything computed from the logits."""
        return precise(self.dtype)


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of losses and of sums of gradients: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def by_chunks(
    differentiate: Callable[..., tuple[torch.Tensor, torch.Tensor]],
) -> Callable[..., Any]:
    """Return a provider's `run` for a `differentiate` of `sums`, which also gets its config."""

    def run(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        chunk: int,
        ignore_index: int,
        softcap: float | None,
        dtype: torch.dtype | None,
        *wanted: bool,
        **config: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        head = Head(ignore_index, softcap, dtype or hidden.dtype)
        for_hidden, for_weight, for_bias = wanted
        return sums(
            hidden, weight, bias, labels.contiguous(), chunk, head,
            (for_hidden, for_weight, for_bias), partial(differentiate, **config),
        )  # fmt: skip

    return run


def sums(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    chunk: int,
    head: Head,
    wanted: tuple[bool, bool, bool],
    differentiate: Callable[
        [torch.Tensor, torch.Tensor, Head, bool], tuple[torch.Tensor, torch.Tensor]
    ],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the summed loss and the gradients of the loss. Unwanted gradients are empty.

    `differentiate(logits, labels, head, with_gradient)` takes the logits `[tokens, vocabulary]` of
    a chunk and may overwrite them. It returns the summed loss of the chunk, and the gradient of
    this loss in the logits' dtype or in `head.precise`.
    """
    kind: dict[str, Any] = {"dtype": head.precise, "device": hidden.device}
    loss = torch.zeros((), **kind)
    for_hidden = torch.empty(
        hidden.shape if wanted[0] else 0, dtype=head.dtype, device=hidden.device
    )
    for_weight = torch.zeros(weight.shape if wanted[1] else 0, **kind)
    for_bias = torch.zeros(len(weight) if wanted[2] and bias is not None else 0, **kind)
    # The weight is cast once here. Autocast would cast it in every chunk and keep each copy.
    with torch.autocast(hidden.device.type, enabled=False):
        weight = weight.to(head.dtype)
        bias = None if bias is None else bias.to(head.dtype)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            tokens = hidden[part].to(head.dtype)
            logits = torch.nn.functional.linear(tokens, weight, bias)
            losses, logits = differentiate(logits, labels[part], head, any(wanted))
            loss += losses
            if for_bias.numel():
                for_bias += logits.sum(0, dtype=head.precise)
            if for_weight.numel():
                _add_product(for_weight, logits, tokens)
            if for_hidden.numel():
                torch.mm(logits.to(head.dtype), weight, out=for_hidden[part])
            del logits  # free them before the next chunk
    return loss, for_hidden, for_weight, for_bias


def _add_product(total: torch.Tensor, gradient: torch.Tensor, tokens: torch.Tensor) -> None:
    """Add `gradient.T @ tokens` to the weight's gradient, `[vocabulary, d]`."""
    if tokens.dtype != torch.bfloat16:  # a float16 product may overflow
        total.addmm_(gradient.to(total.dtype).T, tokens.to(total.dtype))
        return
    narrow = gradient.to(tokens.dtype)
    # Each partial product has at most as many elements as the logits.
    height = max(1, gradient.numel() // max(1, tokens.shape[1]))
    for start in range(0, len(total), height):
        part = slice(start, start + height)
        total[part] += narrow[:, part].T @ tokens
