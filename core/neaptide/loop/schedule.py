"""Computes the learning rate from the update number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    import torch


def rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """Return `lr` of the first group; None on a device, because reading it would wait."""
    rate = optimizer.param_groups[0].get("lr")
    return None if rate is None or not getattr(rate, "is_cpu", True) else float(rate)


@attrs.frozen(kw_only=True)
class LearningRate:
    """A linear warmup; then a constant rate, or a linear or cosine decay to 0 at update `steps`."""

    name: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    steps: int

    def factor(self, step: int) -> float:
        """Return the factor that multiplies the base rate in the update after `step` updates."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        decayed = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        left = max(0.0, 1.0 - decayed)
        if self.name == "linear":
            return left
        if self.name == "cosine":
            return 0.5 * (1.0 - math.cos(math.pi * left))
        return 1.0

    def set(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set `lr` of every group to `initial_lr` times `factor(step)`."""
        if self.name == "constant" and self.warmup_steps == 0:
            return
        factor = self.factor(step)
        for group in optimizer.param_groups:
            base = group.setdefault("initial_lr", group["lr"])
            group["lr"] = base * factor
