"""Adafactor (Shazeer & Stern, 2018, https://arxiv.org/abs/1804.04235) as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer
from neaptide_toolkit.optim.means import mean_square, working_dtype

from .factors import factored_dims, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim.optimizer import ParamsT

_EPS = (1e-30, 1e-3)


class Adafactor(ForeachOptimizer):
    """Adafactor (Shazeer & Stern, 2018, algorithms 4 and 5), without momentum.

    Every argument except `params` is an option of a group. The state of a parameter is a step count
    and a second moment in float32, or in float64 for a float64 parameter. If the two largest
    dimensions of a parameter have R and C elements, the second moment is `row_var` with C replaced
    by 1, and `col_var` with R replaced by 1. If these two are not smaller than the parameter, as
    for a vector, it is `variance` of the parameter's shape.

    Args:
        params: parameters or groups; dense, of a real floating dtype and any shape.
        lr: learning rate, a number; with `relative_step`, its largest value.
        decay_rate: update t keeps the share `1 - t ** -decay_rate` of the second moment, in (0, 1].
        clip_threshold: an update is divided by its root mean square over `clip_threshold`, if this
            is more than 1.
        eps: added to squared gradients; least root mean square that `scale_parameter` uses.
        relative_step: the learning rate is `min(lr, 1 / sqrt(t))`.
        scale_parameter: multiply the learning rate by the parameter's root mean square.
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
        lr: float = 1e-2,
        *,
        decay_rate: float = 0.8,
        clip_threshold: float = 1.0,
        eps: tuple[float, float] = _EPS,
        relative_step: bool = True,
        scale_parameter: bool = True,
        weight_decay: float = 0.0,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "decay_rate": decay_rate,
                "clip_threshold": clip_threshold,
                "eps": tuple(eps),
                "relative_step": relative_step,
                "scale_parameter": scale_parameter,
                "weight_decay": weight_decay,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, _: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0 and a second moment of zeros."""
        state = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
        for name, shape in _shapes(param).items():
            state[name] = param.new_zeros(shape, dtype=working_dtype(param))
        return state

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Apply an update to each parameter, with a temporary copy of one gradient at a time."""
        step, lr = int(state["step"][0]), float(group["lr"])
        rate = min(lr, 1 / math.sqrt(step)) if group["relative_step"] else lr
        share = step ** -group["decay_rate"]
        for place, (param, grad) in enumerate(zip(params, grads, strict=True)):
            if not param.numel():
                continue
            moments = [state[name][place] for name in _shapes(param)]
            change = scaled(grad, moments, share, group["eps"][0])
            factor = mean_square(change).sqrt_().div_(group["clip_threshold"]).clamp_(min=1)
            factor = rate / factor
            if group["scale_parameter"]:
                factor *= mean_square(param).sqrt_().clamp_(min=group["eps"][1])
            if group["weight_decay"]:
                param.mul_(1 - lr * group["weight_decay"])
            param.copy_(torch.sub(param, change.mul_(factor), out=change))

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        eps = group["eps"]
        return {
            "lr": not 0.0 <= float(group["lr"]) < math.inf,
            "decay_rate": not 0.0 < group["decay_rate"] <= 1.0,
            "clip_threshold": not 0.0 < group["clip_threshold"] < math.inf,
            "eps": len(eps) != len(_EPS) or not all(0.0 < each < math.inf for each in eps),
            "relative_step": not isinstance(group["relative_step"], bool),
            "scale_parameter": not isinstance(group["scale_parameter"], bool),
            "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        }


def _shapes(param: torch.Tensor) -> dict[str, list[int]]:
    """Return the names and shapes of the tensors of a parameter's second moment."""
    dims = factored_dims(param.shape)
    if dims is None:
        return {"variance": list(param.shape)}
    row, column = list(param.shape), list(param.shape)
    row[dims[1]] = column[dims[0]] = 1
    return {"row_var": row, "col_var": column}
