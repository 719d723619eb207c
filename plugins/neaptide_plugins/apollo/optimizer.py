"""APOLLO (Zhu et al., 2024, https://arxiv.org/abs/2412.05270) as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer
from neaptide_toolkit.optim.means import working_dtype
from neaptide_toolkit.optim.rounding import seed_of

from .projection import projected, projected_shape, rank_of
from .scaling import factors, limited, normalized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim.optimizer import ParamsT

KINDS = ("apollo", "adamw")
SCALE_TYPES = ("channel", "tensor")
_BETAS = (0.9, 0.999)
_PROJECTION = 1
"""Part of a parameter's random bits; part 0 rounds the weight."""


class Apollo(ForeachOptimizer):
    """APOLLO (Zhu et al., 2024, algorithm 1), and AdamW for what is not projected.

    An update of a matrix is its gradient, times one factor for each row or column of the larger
    side. The factor is by how much AdamW would scale a random projection of the row or column. A
    parameter that is no matrix, whose smaller side is not larger than the rank, or of a group with
    `kind = "adamw"` is updated by AdamW.

    Every argument except `params` is an option of a group. The state of a parameter is a step count
    and two moments, `exp_avg` and `exp_avg_sq`, of its shape or of the shape of its projection; and
    for a matrix that is projected, the `norm` of its last update. Moments and norms are in float32,
    or in float64 for a float64 parameter. A projection is not stored.

    Args:
        params: parameters or groups; dense, of a real floating dtype and any shape.
        lr: learning rate, a number.
        kind: `"apollo"` or `"adamw"`.
        rank: rows of a projection. 0 is a quarter of the smaller side, at most 256.
        scale_type: `"channel"`, or `"tensor"` for one factor for each matrix, as in APOLLO-Mini.
        alpha: multiplies the update of a matrix.
        update_proj_gap: number of updates with the same projection.
        gamma: largest growth of the norm of an update of a matrix; 0 is no limit.
        betas: decays of the moments, in [0, 1).
        eps: added to the root of a second moment.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        rounding: rounding of 16-bit weights: `"stochastic"` or `"nearest"`, see `ForeachOptimizer`.
        seed: seed of the projections and of stochastic rounding.

    Raises:
        ValueError: an option is out of range, or a parameter has no real floating dtype.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state.
    `layer-streaming` runs the update block by block only with such optimizers."""
    placed = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        kind: str = "apollo",
        rank: int = 0,
        scale_type: str = "channel",
        alpha: float = 1.0,
        update_proj_gap: int = 200,
        gamma: float = 1.01,
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
                "kind": kind,
                "rank": rank,
                "scale_type": scale_type,
                "alpha": alpha,
                "update_proj_gap": update_proj_gap,
                "gamma": gamma,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0, moments of zeros and, for a projected matrix, a norm of 0."""
        rank = rank_in(group, param)
        shape = param.shape if rank is None else projected_shape(param.shape, rank)
        dtype = working_dtype(param)
        state = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
        for name in ("exp_avg", "exp_avg_sq"):
            # AdamW's moments have the strides of the weight, as those of torch.
            state[name] = (
                torch.zeros_like(param, dtype=dtype)
                if rank is None
                else param.new_zeros(shape, dtype=dtype)
            )
        return state if rank is None else state | {"norm": param.new_zeros((), dtype=dtype)}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Apply an update to each parameter, with a temporary copy of one gradient at a time."""
        lr = float(group["lr"])
        for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
            if not param.numel():
                continue
            held = {name: tensors[index] for name, tensors in state.items()}
            change = _change(param, grad, held, group, group["places"][index])
            if group["weight_decay"]:
                change.add_(param, alpha=group["weight_decay"])
            param.copy_(torch.sub(param, change.mul_(lr), out=change))

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        betas, gamma = group["betas"], group["gamma"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "kind": group["kind"] not in KINDS,
            "rank": not isinstance(group["rank"], int) or group["rank"] < 0,
            "scale_type": group["scale_type"] not in SCALE_TYPES,
            "alpha": not 0.0 < group["alpha"] < math.inf,
            "update_proj_gap": group["update_proj_gap"] < 1,
            "gamma": gamma != 0 and not 1.0 <= gamma < math.inf,
            "betas": len(betas) != len(_BETAS) or not all(0.0 <= beta < 1.0 for beta in betas),
            "eps": not 0.0 < group["eps"] < math.inf,
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        }


def rank_in(group: Mapping[str, Any], param: torch.Tensor) -> int | None:
    """Return the rank to which the gradients of a parameter of a group are projected, or None."""
    return rank_of(param.shape, group["rank"]) if group["kind"] == "apollo" else None


def _change(
    param: torch.Tensor,
    grad: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    group: Mapping[str, Any],
    place: int,
) -> torch.Tensor:
    """Return what, times the learning rate, is subtracted from a parameter, in a new tensor."""
    step, moments = int(state["step"]), (state["exp_avg"], state["exp_avg_sq"])
    rank = rank_in(group, param)
    if rank is None:
        wide = grad.to(working_dtype(param))
        return normalized(wide, moments, step, group["betas"], group["eps"])
    change = grad.to(working_dtype(param), copy=True)
    period = (step - 1) // group["update_proj_gap"]
    plain = projected(change, rank, seed_of(group["seed"], period, place, _PROJECTION))
    scaled = normalized(plain, moments, step, group["betas"], group["eps"])
    by_channel = group["scale_type"] == "channel"
    change.mul_(factors(scaled, plain, by_channel=by_channel)).mul_(group["alpha"])
    if group["gamma"]:
        limited(change, state["norm"], group["gamma"])
    return change
