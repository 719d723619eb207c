"""AdEMAMix (Pagliardini et al., 2024, https://arxiv.org/abs/2409.03137) as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer

from .warmups import alpha_at, slow_decay_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim.optimizer import ParamsT

_AVERAGES = ("exp_avg", "exp_avg_slow", "exp_avg_sq")


class AdEMAMix(ForeachOptimizer):
    """AdEMAMix (Pagliardini et al., 2024): AdamW with a second, slow average of the gradients.

    Every argument except `params` is an option of a group. The state of a parameter is a step count
    and three averages. Each average has the shape and dtype of the parameter.

    Args:
        params: parameters or groups; dense, of a real floating dtype.
        lr: learning rate, a number.
        betas: decay of the fast average, of the second moment and of the slow average, in [0, 1).
        alpha: weight of the slow average. The slow average has no bias correction.
        warmup_steps: number of updates during which `alpha` rises from 0, and the decay of the slow
            average rises from the decay of the fast average.
        eps: added to the square root of the second moment, more than 0.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        rounding: rounding of 16-bit weights: `"stochastic"` or `"nearest"`, see `ForeachOptimizer`.
        seed: seed of stochastic rounding.

    Raises:
        ValueError: an option is out of range, or a parameter has no real floating dtype.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state.
    `layer-streaming` runs the update block by block only with such optimizers."""
    elementwise = True
    """The update of each value reads only this value, its gradient and its state. `sharding` lets a
    process update some rows of a parameter only with such optimizers."""
    rounded_state = _AVERAGES

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        warmup_steps: int = 0,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "alpha": alpha,
                "warmup_steps": warmup_steps,
                "eps": eps,
                "weight_decay": weight_decay,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, _: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0 and three averages of zeros."""
        count = torch.zeros((), dtype=torch.float32, device="cpu")
        return {"step": count, **{name: torch.zeros_like(param) for name in _AVERAGES}}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Apply algorithm 1 of the paper, with two temporary tensors per weight."""
        step = int(state["step"][0])
        fast, slow, second = (state[name] for name in _AVERAGES)
        lr, warmup = float(group["lr"]), group["warmup_steps"]
        beta1, beta2, beta3 = group["betas"]
        torch._foreach_lerp_(fast, grads, 1 - beta1)
        torch._foreach_lerp_(slow, grads, 1 - slow_decay_at(step, beta1, beta3, warmup))
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        direction = torch._foreach_div(fast, 1 - beta1**step)  # noqa: SLF001 - as torch.optim
        torch._foreach_add_(direction, slow, alpha=alpha_at(step, group["alpha"], warmup))
        root = torch._foreach_sqrt(second)  # noqa: SLF001 - as torch.optim
        torch._foreach_div_(root, math.sqrt(1 - beta2**step))
        torch._foreach_add_(root, group["eps"])
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(params, direction, root, -lr)

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas = group["betas"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "betas": len(betas) != len(_AVERAGES) or not all(0.0 <= beta < 1.0 for beta in betas),
            "alpha": not 0.0 <= group["alpha"] < math.inf,
            "warmup_steps": group["warmup_steps"] < 0,
            "eps": not 0.0 < group["eps"] < math.inf,
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        }
