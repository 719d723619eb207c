"""The loss of all built-in models: summed cross-entropy. Sums of several batches can be added."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return the summed cross-entropy in nats (a scalar) and the number of targets.

    `logits` is `[N, classes]`, `targets` int64 `[N]`. The sum is in float32 or wider: over
    thousands of targets a bfloat16 sum is too coarse to show small differences.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(precise, targets, reduction="sum"), targets.numel()
