"""Muon as a torch optimizer, with AdamW for the groups that are not hidden matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw

from .checks import check_gradient, check_options, check_parameters
from .matrices import Piece, batches, rows_of
from .newton_schulz import orthogonalised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim.optimizer import ParamsT

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024), and AdamW for groups whose `kind` is `"adamw"`.

    Every argument except `params` is an option of a group. The state of a parameter that Muon
    updates is one momentum. The state of a parameter that AdamW updates is two moments and a step
    count. Momentum and moments have the weight's dtype.

    Args:
        params: parameters or groups, dense and real. A parameter of `kind = "muon"` has at least
            two dimensions; Muon flattens it to `[dim 0, product of the other dims]`. A `stacked`
            parameter has at least three dimensions.
        lr: learning rate, a number.
        kind: `"muon"` or `"adamw"`.
        momentum: decay of the momentum, in [0, 1).
        nesterov: orthogonalise `momentum * m + (1 - momentum) * gradient` instead of the momentum
            `m`.
        ns_steps: number of Newton-Schulz steps.
        ns_dtype: `"float32"`, `"bfloat16"`, or `"auto"`: bfloat16 on a GPU, else float32.
        scale: name of the factor that multiplies a matrix's update. `"match_rms_adamw"` is
            0.2 * sqrt(max(rows, columns)). `"original"` is sqrt(max(1, rows / columns)).
        split: how to divide a weight's rows into matrices: the relative numbers of rows.
        stacked: whether a weight is a stack of matrices `[N, R, C]`.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        betas: decays of AdamW's first and second moment, in [0, 1).
        eps: added to the square root of AdamW's second moment, more than 0.

    Raises:
        ValueError: an option is out of range, or a parameter does not fit its group's kind.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        kind: str = "muon",
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_dtype: str = "auto",
        scale: str = "match_rms_adamw",
        split: Sequence[int] = (1,),
        stacked: bool = False,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "kind": kind,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_steps": ns_steps,
                "ns_dtype": ns_dtype,
                "scale": scale,
                "split": tuple(split),
                "stacked": stacked,
                "weight_decay": weight_decay,
                "betas": betas,
                "eps": eps,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; ValueError if an option or a parameter of the group does not fit."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_options(group)
            check_parameters(group, len(self.param_groups) - 1)
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
        pieces: list[Piece] = []
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                check_gradient(param.grad)
            if group["kind"] == "muon":
                pieces += self._moved(params, group)
            else:
                self._adamw(params, group)
        for batch in batches(pieces):
            # No variable here refers to the stack, so `orthogonalised` can free the stack.
            updates = orthogonalised(
                torch.stack([piece.lying() for piece in batch]), batch[0].steps
            )
            for piece, update in zip(batch, updates, strict=True):
                piece.apply(update)
        return loss

    def _moved(self, params: list[torch.Tensor], group: dict[str, Any]) -> Iterator[Piece]:
        """Apply weight decay and update the momenta; return the matrices to orthogonalise."""
        if not params:
            return iter(())
        grads = [param.grad for param in params if param.grad is not None]
        for param in params:
            if not self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum_buffer"] for param in params]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - float(group["lr"]) * group["weight_decay"])
        return (
            piece
            for param, grad, buffer in zip(params, grads, buffers, strict=True)
            for piece in _pieces(param, grad, buffer, group)
        )

    def _adamw(self, params: list[torch.Tensor], group: dict[str, Any]) -> None:
        for on_cpu in (True, False):
            alike = [param for param in params if param.is_cpu is on_cpu]
            if not alike:
                continue
            for param in alike:
                if not self.state[param]:
                    self.state[param] = {
                        "step": torch.zeros((), dtype=torch.float32, device="cpu"),
                        "exp_avg": torch.zeros_like(param),
                        "exp_avg_sq": torch.zeros_like(param),
                    }
            states = [self.state[param] for param in alike]
            beta1, beta2 = group["betas"]
            adamw(
                alike,
                [param.grad for param in alike if param.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                # On a GPU, the fused version needs the step counts on the GPU.
                fused=on_cpu,
                foreach=not on_cpu,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=float(group["lr"]),
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


def _pieces(
    param: torch.Tensor, grad: torch.Tensor, buffer: torch.Tensor, group: dict[str, Any]
) -> Iterator[Piece]:
    dtype = _DTYPES.get(group["ns_dtype"])
    if dtype is None:
        dtype = torch.float32 if param.is_cpu else torch.bfloat16
    tensors = (param, grad, buffer)
    stacks = zip(*(_matrices(each, group) for each in tensors), strict=True)
    for weight, gradient, momentum in stacks:
        lr = float(group["lr"]) * _factor(group["scale"], weight)
        ahead = group["momentum"] if group["nesterov"] else 1.0
        yield Piece(weight, gradient, momentum, ahead, lr, group["ns_steps"], dtype)


def _matrices(tensor: torch.Tensor, group: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield views of the matrices in a parameter, or in its gradient or momentum."""
    for matrix in tensor.unbind(0) if group["stacked"] else (tensor,):
        yield from torch.split(matrix, rows_of(matrix.shape[0], group["split"]))


def _factor(scale: str, weight: torch.Tensor) -> float:
    rows, columns = weight.shape[0], weight[0].numel()
    if scale == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
