"""AdamW with 8-bit moments as a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.adam8bit import adam8bit_step, new_state
from neaptide_kernels.state_codes.optimizer import CodedOptimizer, check_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.optim.optimizer import ParamsT


class Adam8bit(CodedOptimizer):
    """AdamW (Loshchilov and Hutter, 2019) with 2.03 bytes of state per parameter element.

    Args:
        params: parameters or groups, float32 or bfloat16.
        lr: learning rate, a number or a 0-dim tensor.
        betas: decays of the first and the second moment, in [0, 1).
        eps: added to the square root of the second moment, more than 0.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        seed: seed for the stochastic rounding of the state and of bfloat16 weights.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state.
    `layer-streaming` runs the update block by block only with such optimizers."""
    state_names = ("exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale", "step")

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        seed: int = 0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "seed": seed}
        check_options("Adam8bit", options)
        super().__init__(params, options)

    def new_state(self, param: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the state of `param` before the first step; all its tensors are 0."""
        return new_state(param)

    def update(
        self,
        lists: Sequence[list[torch.Tensor]],
        lr: torch.Tensor,
        group: dict[str, Any],
        seed: int,
    ) -> None:
        """Update a group's parameters by one call of `adam8bit_step`."""
        beta1, beta2 = group["betas"]
        adam8bit_step(*lists, lr, beta1, beta2, group["eps"], group["weight_decay"], seed)
