"""AdEMAMix as a torch optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .warmups import alpha_at, slow_decay_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim.optimizer import ParamsT

_TOGETHER = 1 << 22
"""Largest number of elements updated in one call. Temporary tensors have twice as many elements."""
_AVERAGES = ("exp_avg", "exp_avg_slow", "exp_avg_sq")


class AdEMAMix(torch.optim.Optimizer):
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
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        warmup_steps: int = 0,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
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
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; ValueError if an option or a parameter of the group does not fit."""
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure` returns, if given.

        Args:
            closure: evaluates the model again, with gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                self._count(param)
            for step, alike in self._batches(params):
                fast, slow, second = (
                    [self.state[each][name] for each in alike] for name in _AVERAGES
                )
                grads = [each.grad for each in alike if each.grad is not None]
                _update(alike, grads, fast, slow, second, step, group)
        return loss

    def _count(self, param: torch.Tensor) -> None:
        if param.grad is not None and param.grad.layout != torch.strided:
            msg = f"AdEMAMix takes dense gradients (got {param.grad.layout}); set sparse=False"
            raise ValueError(msg)
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state.update((name, torch.zeros_like(param)) for name in _AVERAGES)
        state["step"] += 1

    def _batches(self, params: Sequence[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Yield batches of parameters with equal step count, device and dtype."""
        alike: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        for param in params:
            key = (int(self.state[param]["step"]), param.device, param.dtype)
            alike.setdefault(key, []).append(param)
        for (step, *_), group in alike.items():
            batch: list[torch.Tensor] = []
            size = 0
            for param in group:
                if batch and size + param.numel() > _TOGETHER:
                    yield step, batch
                    batch, size = [], 0
                batch.append(param)
                size += param.numel()
            yield step, batch


def _update(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    fast: list[torch.Tensor],
    slow: list[torch.Tensor],
    second: list[torch.Tensor],
    step: int,
    group: dict[str, Any],
) -> None:
    """Apply update number `step`, as in algorithm 1 of the paper."""
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


def _check(group: dict[str, Any], place: int) -> None:
    betas = group["betas"]
    wrong = {
        "lr": not 0.0 <= float(group["lr"]) < math.inf,
        "betas": len(betas) != len(_AVERAGES) or not all(0.0 <= beta < 1.0 for beta in betas),
        "alpha": not 0.0 <= group["alpha"] < math.inf,
        "warmup_steps": group["warmup_steps"] < 0,
        "eps": not 0.0 < group["eps"] < math.inf,
        "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            msg = f"AdEMAMix: {name} is out of range (got {group[name]!r})"
            raise ValueError(msg)
    for index, param in enumerate(group["params"]):
        if not param.is_floating_point():
            msg = (
                f"AdEMAMix: parameter {index} of group {place}, {param.dtype} "
                f"{list(param.shape)}, has no real floating dtype; leave it out"
            )
            raise ValueError(msg)
