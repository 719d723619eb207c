"""AdamW over split float32 masters, in plain torch: what the kernel must compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .split_master import join, split


def adamw_split_step(
    hi: Sequence[torch.Tensor],
    lo: Sequence[torch.Tensor],
    exp_avg: Sequence[torch.Tensor],
    exp_avg_sq: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    lr: torch.Tensor,
    step: torch.Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
) -> None:
    """Update weights whose float32 masters are `split` in two, and their moments, in place.

    On a CPU the masters and moments are those of `torch.optim.AdamW(foreach=False)`, bit for bit,
    `lr` being a float there where it is float64 here, and a float32 tensor where it is float32.
    Non-finite numbers spread as they do there. Here `lr` and `step` are read on the host; a kernel
    reads them where they are.

    Args:
        hi: bfloat16 weights of any shapes, dense in memory.
        lo: int16, what `split` put beside each, with its strides.
        exp_avg: float32 first moments, of those shapes.
        exp_avg_sq: float32 second moments, likewise.
        grads: floating, likewise; taken as float32.
        lr: learning rate, 0-dim, float32 or float64.
        step: which update of these weights this is, from 1; 0-dim.
        beta1: decay of the first moments, in [0, 1).
        beta2: decay of the second moments, in [0, 1).
        eps: added to the root of the second moments.
        weight_decay: decoupled; times `lr` the share of a weight that goes.
        maximize: follow the gradients upwards.
    """
    count = step.item()
    # As a float64 tensor it would make the product with a 0-dim master one of float64.
    rate: Any = lr.item() if lr.dtype == torch.float64 else lr
    step_size = rate / (1 - beta1**count)
    root_correction = (1 - beta2**count) ** 0.5
    for high, low, mean, square, gradient in zip(hi, lo, exp_avg, exp_avg_sq, grads, strict=True):
        master = join(high, low)
        grad = gradient.to(torch.float32)
        if maximize:
            grad = -grad
        if weight_decay != 0:
            master.mul_(1 - rate * weight_decay)
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square.sqrt() / root_correction).add_(eps)
        master.addcdiv_(mean, denominator, value=-step_size)
        split(master, high, low)
