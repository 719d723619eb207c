"""Lion in plain torch: the reference for the step that is compiled for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from neaptide_kernels.apply_delta.reference import apply_delta
from neaptide_kernels.registry import takes


class LionStep(NamedTuple):
    """The arguments of `lion_step`."""

    params: Sequence[torch.Tensor]
    """Floating, of one dtype, any shapes."""
    grads: Sequence[torch.Tensor]
    """Of the dtype and the shapes of `params`."""
    exp_avg: Sequence[torch.Tensor]
    """Momentums, of the dtype and the shapes of `params`."""
    seeds: Sequence[int]
    """For each weight, the seed of its stochastic rounding; empty: 16-bit weights are updated in
    their own dtype."""
    lr: float
    """Learning rate."""
    beta1: float = 0.9
    """Share of the momentum in the update, in [0, 1)."""
    beta2: float = 0.99
    """Decay of the momentum, in [0, 1)."""
    weight_decay: float = 0.0
    """Decoupled: an update shrinks each weight by the fraction `lr * weight_decay`."""


@takes(LionStep)
def lion_step(call: LionStep) -> None:
    """Update weights and momentums in place, by algorithm 2 of Chen et al., 2023.

    The paper is "Symbolic Discovery of Optimization Algorithms", https://arxiv.org/abs/2302.06675.
    With `seeds`, a 16-bit weight is updated in float32, and what the update adds to it is rounded
    stochastically by `apply_delta`. Means are rounded to the nearest number of the dtype.
    """
    for place, (param, grad, mean) in enumerate(zip(*call[:3], strict=True)):
        rounding = bool(call.seeds) and param.dtype in {torch.bfloat16, torch.float16}
        wide = param.float() if rounding else param
        direction = mean.lerp(grad, 1 - call.beta1).sign_()
        if call.weight_decay:
            wide.mul_(1 - call.lr * call.weight_decay)
        wide.add_(direction, alpha=-call.lr)
        mean.lerp_(grad, 1 - call.beta2)
        if rounding:
            one = torch.ones((), device=param.device)
            apply_delta([param], [wide.sub_(param)], one, True, call.seeds[place])
