"""Muon as a torch optimizer, with AdamW for the groups that are not hidden matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw

from neaptide_toolkit.optim.foreach_optimizer import STEP, ForeachOptimizer, ones
from neaptide_toolkit.tensors import laid_out_as

from .checks import check_matrices, out_of_range
from .matrices import batches
from .polynomials import coefficients
from .together import orthogonalised_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim.optimizer import ParamsT

    from .matrices import Alike

_MOMENTUM, _FIRST, _SECOND = "momentum_buffer", "exp_avg", "exp_avg_sq"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NORMS = {"polar-express": "schatten", "jordan": "frobenius"}
"""By polynomial, the norm that `"auto"` is."""


class Muon(ForeachOptimizer):
    """Muon (Jordan et al., 2024), and AdamW for groups whose `kind` is `"adamw"`.

    Every argument except `params` is an option of a group. The state of a parameter is a
    step count, and a momentum if Muon updates it or two moments if AdamW does. Momentum and moments
    have the weight's dtype.

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
        polynomial: `"polar-express"`, or `"jordan"`, which with five steps is `torch.optim.Muon`.
        norm: what a matrix is divided by before the steps, see `orthogonalised`: `"frobenius"`,
            `"schatten"`, or `"auto"`: that of Schatten with Polar Express, else that of Frobenius.
        ns_dtype: `"float32"`, `"bfloat16"`, or `"auto"`: bfloat16 on a GPU, and for matrices of at
            least 96 rows and columns on a CPU with instructions for it, else float32.
        scale: name of the factor that multiplies a matrix's update. `"match_rms_adamw"` is
            0.2 * sqrt(max(rows, columns)). `"original"` is sqrt(max(1, rows / columns)).
        split: how to divide a weight's rows into matrices: the relative numbers of rows.
        stacked: whether a weight is a stack of matrices `[N, R, C]`.
        weight_decay: decoupled: an update shrinks each weight by the fraction `lr * weight_decay`.
        betas: decays of AdamW's first and second moment, in [0, 1).
        eps: added to the square root of AdamW's second moment, more than 0.
        rounding: rounding of 16-bit weights: `"stochastic"` or `"nearest"`, see `ForeachOptimizer`.
        seed: seed of stochastic rounding.

    Raises:
        ValueError: an option is out of range, or a parameter does not fit its group's kind.
    """

    separable = True
    """The update of a parameter reads only this parameter, its gradient and its state: other
    matrices of a batch do not change its bits. `layer-streaming` runs the update block by block
    only with such optimizers."""
    rounded_state = (_MOMENTUM, _FIRST, _SECOND)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        kind: str = "muon",
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 3,
        polynomial: str = "polar-express",
        norm: str = "auto",
        ns_dtype: str = "auto",
        scale: str = "match_rms_adamw",
        split: Sequence[int] = (1,),
        stacked: bool = False,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "kind": kind,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_steps": ns_steps,
                "polynomial": polynomial,
                "norm": norm,
                "ns_dtype": ns_dtype,
                "scale": scale,
                "split": tuple(split),
                "stacked": stacked,
                "weight_decay": weight_decay,
                "betas": betas,
                "eps": eps,
                "rounding": rounding,
                "seed": seed,
            },
        )

    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a step count of 0, and a momentum of zeros or AdamW's two moments of zeros."""
        names = (_MOMENTUM,) if group["kind"] == "muon" else (_FIRST, _SECOND)
        count = torch.zeros((), dtype=torch.float32, device="cpu")
        return {STEP: count, **{name: torch.zeros_like(param) for name in names}}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Orthogonalise the momenta of matrices, or apply torch's AdamW."""
        if group["kind"] != "muon":
            _adamw(params, grads, state, group)
            return
        momenta, lr = state[_MOMENTUM], float(group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        for batch in _batches(params, group):
            weights, ahead = ([cut.of(each) for cut in batch.cuts] for each in (params, momenta))
            if group["nesterov"]:
                gradients = [cut.of(grads) for cut in batch.cuts]
                ahead = [*torch._foreach_lerp(gradients, ahead, group["momentum"])]  # noqa: SLF001 - as torch.optim
            updates = _updates(batch, ahead, group)
            torch._foreach_add_(weights, updates, alpha=-(lr * batch.factor))

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option whether its value is out of range."""
        return out_of_range(group)

    def _check(self, group: dict[str, Any], place: int) -> None:
        super()._check(group, place)
        check_matrices(group, place)


def _adamw(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    state: Mapping[str, list[torch.Tensor]],
    group: dict[str, Any],
) -> None:
    on_cpu = params[0].is_cpu
    beta1, beta2 = group["betas"]
    first = state[_FIRST]
    changed = params, state[_SECOND]
    weights, second = ([*map(laid_out_as, first, each)] for each in changed)
    adamw(
        weights,
        [*map(laid_out_as, first, grads)],
        first,
        second,
        [],
        [*torch._foreach_sub(state[STEP], ones(state[STEP]))],  # noqa: SLF001 - the function adds 1
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
    for tensors, laid in zip(changed, (weights, second), strict=True):
        for tensor, value in zip(tensors, laid, strict=True):
            if value is not tensor:
                tensor.copy_(value)


def _batches(params: Sequence[torch.Tensor], group: Mapping[str, Any]) -> tuple[Alike, ...]:
    return batches(
        tuple(param.shape for param in params),
        split=tuple(group["split"]),
        stacked=bool(group["stacked"]),
        scale=group["scale"],
        dtype=_DTYPES.get(group["ns_dtype"]),
        is_cpu=params[0].is_cpu,
    )


def _updates(
    batch: Alike, ahead: Sequence[torch.Tensor], group: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Return the orthogonalised matrices of a batch, of their shapes."""
    cuts = batch.cuts
    lying = [cut.lying(each, batch.dtype) for cut, each in zip(cuts, ahead, strict=True)]
    steps = coefficients(group["polynomial"], group["ns_steps"])
    norm = group["norm"]
    if norm == "auto":
        norm = _NORMS[group["polynomial"]]
    found = orthogonalised_together(lying, steps, norm)
    return [cut.turned(*each) for cut, *each in zip(cuts, found, ahead, strict=True)]
