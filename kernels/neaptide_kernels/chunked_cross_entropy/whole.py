"""The loss of few logits on a CPU, by torch's own cross-entropy: what a chunk costs is not saved.

The op costs some 20 operations and two calls of the registry, whatever its size. Torch's loss holds
all logits three times, which is no more than 12 MiB of float32 for `MOST` of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.registry import KERNELS

if TYPE_CHECKING:
    from typing import Literal

MOST = 1 << 20
"""Logits of a call, at most."""
_DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16})
"""In float16 the gradients of the logits may overflow, once the loss is scaled."""


def is_small(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> bool:
    """Return whether torch's loss is as exact as the op's, and cheaper.

    torch refuses what else is wrong of shapes and labels. A frozen weight is left
    to the op: there the gradient of an ignored token is 0 even if `hidden` is NaN. With a gradient
    of the weight, this gradient is NaN either way.
    """
    return (
        hidden.is_cpu
        and weight.is_cpu
        and labels.is_cpu
        and hidden.dtype in _DTYPES
        and weight.dtype == hidden.dtype
        and weight.dim() == 2  # noqa: PLR2004 - a matrix
        and labels.shape == hidden.shape[:-1]
        and labels.dtype == torch.int64
        and (
            bias is None
            or (bias.is_cpu and bias.dtype == hidden.dtype and bias.shape == weight.shape[:1])
        )
        and 0 < labels.numel() * weight.shape[0] <= MOST
        and (weight.requires_grad or not (hidden.requires_grad and torch.is_grad_enabled()))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and KERNELS.requested("chunked_cross_entropy") is None
    )


def cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    ignore_index: int,
    reduction: Literal["mean", "sum"],
    softcap: float | None,
) -> torch.Tensor:
    """Return the loss of all logits at once."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if labels.dim() != 1:
        logits, labels = logits.reshape(labels.numel(), -1), labels.reshape(-1)
    return torch.nn.functional.cross_entropy(
        logits, labels, ignore_index=ignore_index, reduction=reduction
    )
