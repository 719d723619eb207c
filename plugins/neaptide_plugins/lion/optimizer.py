"""Lion (Chen et al., 2023, https://arxiv.org/abs/2302.06675) as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.lion import lion_step, runs_by_kernel
from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim.optimizer import ParamsT

_BETAS = (0.9, 0.99)


class Lion(ForeachOptimizer):
    """Lion (Chen et al., 2023, algorithm 2): each update is the sign of a mean, times `lr`.

    Every argument except `params` is an option of a group. The state of a parameter is a step
    count, from which the bits of stochastic rounding come, and one momentum `exp_avg` of the
    parameter's shape and dtype.

    Args:
        params: parameters or groups; dense, of a real floating dtype and any shape.
        lr: learning rate, a number. An update moves each weight by `lr`.
        betas: share of the momentum in an update, and decay of the momentum, in [0, 1).
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

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = _BETAS,
        weight_decay: float = 0.0,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "weight_decay": weight_decay,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, _: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0 and a momentum of zeros."""
        count = torch.zeros((), dtype=torch.float32, device="cpu")
        return {"step": count, "exp_avg": torch.zeros_like(param)}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Apply algorithm 2 of the paper, with one temporary tensor per weight."""
        lr, momentum = float(group["lr"]), state["exp_avg"]
        beta1, beta2 = group["betas"]
        direction = torch._foreach_lerp(momentum, grads, 1 - beta1)  # noqa: SLF001 - as torch.optim
        torch._foreach_sign_(direction)
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_add_(params, direction, alpha=-lr)
        torch._foreach_lerp_(momentum, grads, 1 - beta2)

    def update_in_one_pass(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
        seeds: Sequence[int],
    ) -> bool:
        """Update and round by `lion_step`, if it has a kernel for these tensors."""
        options = float(group["lr"]), *map(float, group["betas"]), group["weight_decay"]
        arguments = (params, grads, state["exp_avg"], seeds, *options)
        if params[0].device.type != "cpu" or not runs_by_kernel(arguments):
            return False
        lion_step(*arguments)
        return True

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas = group["betas"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "betas": len(betas) != len(_BETAS) or not all(0.0 <= beta < 1.0 for beta in betas),
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        }
