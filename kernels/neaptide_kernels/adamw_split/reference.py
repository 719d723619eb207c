"""AdamW over split float32 masters in plain torch: the reference for the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from neaptide_kernels.parts import rows_of
from neaptide_kernels.registry import takes

from .split_master import join, split


class AdamWSplitStep(NamedTuple):
    """The arguments of `adamw_split_step`."""

    hi: Sequence[torch.Tensor]
    """bfloat16 weights of any shapes, dense in memory."""
    lo: Sequence[torch.Tensor]
    """int16 rounding errors, as returned by `split`; each has the shape and strides of `hi`."""
    exp_avg: Sequence[torch.Tensor]
    """float32 first moments, of the shapes of `hi`."""
    exp_avg_sq: Sequence[torch.Tensor]
    """float32 second moments, of the shapes of `hi`."""
    grads: Sequence[torch.Tensor]
    """Floating, of the shapes of `hi`; converted to float32."""
    lr: torch.Tensor
    """Learning rate, 0-dim, float32 or float64."""
    step: torch.Tensor
    """The number of this update of the weights, from 1; 0-dim."""
    beta1: float = 0.9
    """Decay of the first moments, in [0, 1)."""
    beta2: float = 0.999
    """Decay of the second moments, in [0, 1)."""
    eps: float = 1e-8
    """Added to the square root of the second moments."""
    weight_decay: float = 1e-2
    """Decoupled: an update shrinks each weight by the fraction `lr * weight_decay`."""
    maximize: bool = False
    """Maximize the loss instead of minimizing it."""
    fused: bool = False
    """Round as `torch.optim.AdamW(fused=True)` does. Kernels round alike with both."""


@takes(AdamWSplitStep)
def adamw_split_step(call: AdamWSplitStep) -> None:
    """Update split masters (float32 weights, see `split`) and their moments, in place.

    On a CPU, masters and moments are bitwise equal to the weights and moments of
    `torch.optim.AdamW(foreach=False)`, or `AdamW(fused=True)`, also for non-finite numbers. A
    float64 `lr` gives the result that torch gives for a float `lr`. A float32 `lr` gives the result
    that torch gives for a float32 tensor `lr`. The reference reads `lr` and `step` on the host; a
    kernel for a GPU reads both on the device.
    """
    lr, beta1, beta2 = call.lr, call.beta1, call.beta2
    count = call.step.item()
    # `lr` is a float, because a float64 tensor times a 0-dim master would be float64.
    rate: Any = lr.item() if lr.dtype == torch.float64 else lr
    step_size = rate / (1 - beta1**count)
    root_correction = (1 - beta2**count) ** 0.5
    for _, (high, low, mean, square, gradient) in rows_of(call[:5]):
        master = join(high, low)
        if call.fused:
            _fused(master, gradient, mean, square, rate, call)
            split(master, high, low)
            continue
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


def _fused(
    master: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    rate: Any,
    call: AdamWSplitStep,
) -> None:
    """Make torch's fused step, which goes through memory and does not look at strides."""
    grad, average, squares = (
        one
        if one.dtype == torch.float32 and one.stride() == master.stride()
        else torch.empty_like(master).copy_(one)
        for one in (gradient, mean, square)
    )
    torch._fused_adamw_(
        [master], [grad], [average], [squares], [], [call.step.to(torch.float32)],
        lr=rate, beta1=call.beta1, beta2=call.beta2, weight_decay=call.weight_decay, eps=call.eps,
        amsgrad=False, maximize=call.maximize,
    )  # fmt: skip
    for tensor, result in ((mean, average), (square, squares)):
        if result is not tensor:
            tensor.copy_(result)
