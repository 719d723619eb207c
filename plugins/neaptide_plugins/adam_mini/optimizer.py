"""Adam-mini (Zhang et al., 2024, https://arxiv.org/abs/2406.16793) as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer
from neaptide_toolkit.optim.means import mean_square, working_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim.optimizer import ParamsT

_BETAS = (0.9, 0.999)


class AdamMini(ForeachOptimizer):
    """Adam-mini (Zhang et al., 2024, algorithm 1): AdamW with one second moment per block.

    The blocks are the rows of a weight: a weight of shape `[R, ...]` has R second moments, each of
    the mean of a row's squared gradients. A row is the input of one neuron, one token of an
    embedding, or one output channel. A weight with fewer than two dimensions is one block. The
    paper joins the rows of an attention head for queries and keys; here each row is a block.

    Every argument except `params` is an option of a group. The state of a parameter is a step
    count; `exp_avg` of the parameter's shape and dtype; and `exp_avg_sq` of shape `[R, 1, ...]` in
    float32, or in float64 for a float64 parameter.

    Args:
        params: parameters or groups; dense, of a real floating dtype and any shape.
        lr: learning rate, a number.
        betas: decays of the mean of gradients and of the second moments, in [0, 1).
        eps: added to the root of a second moment.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        rounding: rounding of 16-bit weights: `"stochastic"` or `"nearest"`, see `ForeachOptimizer`.
        seed: seed of stochastic rounding.

    Raises:
        ValueError: an option is out of range, or a parameter has no real floating dtype.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state.
    `layer-streaming` runs the update block by block only with such optimizers."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = _BETAS,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, _: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0, a mean of zeros and second moments of zeros."""
        rows = [size if param.dim() > 1 and not dim else 1 for dim, size in enumerate(param.shape)]
        return {
            "step": torch.zeros((), dtype=torch.float32, device="cpu"),
            "exp_avg": torch.zeros_like(param),
            "exp_avg_sq": param.new_zeros(rows, dtype=working_dtype(param)),
        }

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Apply algorithm 1 of the paper; temporary tensors have the size of the second moments."""
        step, lr = int(state["step"][0]), float(group["lr"])
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(state["exp_avg"], grads, 1 - beta1)
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        size = lr / (1 - beta1**step)
        for param, grad, mean, second in zip(
            params, grads, state["exp_avg"], state["exp_avg_sq"], strict=True
        ):
            if not param.numel():
                continue
            second.lerp_(mean_square(grad, _inside(grad)), 1 - beta2)
            root = second.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
            param.addcmul_(mean, root.reciprocal_(), value=-size)

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas = group["betas"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "betas": len(betas) != len(_BETAS) or not all(0.0 <= beta < 1.0 for beta in betas),
            "eps": not 0.0 < group["eps"] < math.inf,
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        }


def _inside(grad: torch.Tensor) -> range | None:
    """Return the dimensions of a block; None for a tensor without dimensions."""
    return range(int(grad.dim() > 1), grad.dim()) if grad.dim() else None
