"""AdamW over split float32 masters, in plain torch: what the kernel must compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from neaptide_kernels.registry import takes

from .split_master import join, split


class AdamWSplitStep(NamedTuple):
    """The arguments of `adamw_split_step`."""

    hi: Sequence[torch.Tensor]
    """bfloat16 weights of any shapes, dense in memory."""
    lo: Sequence[torch.Tensor]
    """int16, what `split` put beside each, with its strides."""
    exp_avg: Sequence[torch.Tensor]
    """float32 first moments, of those shapes."""
    exp_avg_sq: Sequence[torch.Tensor]
    """float32 second moments, likewise."""
    grads: Sequence[torch.Tensor]
    """Floating, likewise; taken as float32."""
    lr: torch.Tensor
    """Learning rate, 0-dim, float32 or float64."""
    step: torch.Tensor
    """Which update of these weights this is, from 1; 0-dim."""
    beta1: float = 0.9
    """Decay of the first moments, in [0, 1)."""
    beta2: float = 0.999
    """Decay of the second moments, in [0, 1)."""
    eps: float = 1e-8
    """Added to the root of the second moments."""
    weight_decay: float = 1e-2
    """Decoupled; times `lr` the share of a weight that goes."""
    maximize: bool = False
    """Follow the gradients upwards."""


@takes(AdamWSplitStep)
def adamw_split_step(call: AdamWSplitStep) -> None:
    """Update weights whose float32 masters are `split` in two, and their moments, in place.

    On a CPU the masters and moments are those of `torch.optim.AdamW(foreach=False)`, bit for bit,
    `lr` being a float there where it is float64 here, and a float32 tensor where it is float32.
    Non-finite numbers spread as they do there. Here `lr` and `step` are read on the host; a kernel
    reads them where they are.
    """
    lr, beta1, beta2 = call.lr, call.beta1, call.beta2
    count = call.step.item()
    # As a float64 tensor it would make the product with a 0-dim master one of float64.
    rate: Any = lr.item() if lr.dtype == torch.float64 else lr
    step_size = rate / (1 - beta1**count)
    root_correction = (1 - beta2**count) ** 0.5
    for high, low, mean, square, gradient in zip(*call[:5], strict=True):
        master = join(high, low)
        grad = gradient.to(torch.float32)
        if call.maximize:
            grad = -grad
        if call.weight_decay != 0:
            master.mul_(1 - rate * call.weight_decay)
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square.sqrt() / root_correction).add_(call.eps)
        master.addcdiv_(mean, denominator, value=-step_size)
        split(master, high, low)
