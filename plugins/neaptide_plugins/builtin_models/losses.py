"""The loss of all built-in models: cross-entropy, summed over the targets of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return the summed cross-entropy in nats (a scalar) and the number of targets.

    `logits` is `[N, classes]`, and `targets` is int64 `[N]`. The dtype of the sum is float32 or
    wider, because a bfloat16 sum over thousands of targets would hide small differences.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(precise, targets, reduction="sum"), targets.numel()
