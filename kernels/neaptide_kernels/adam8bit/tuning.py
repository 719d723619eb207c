"""How the 8-bit Adam kernel is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_kernels.state_codes import launching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from neaptide_kernels.shipping import ShippedKernel


def step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avg: Sequence[torch.Tensor],
    exp_avg_sq: Sequence[torch.Tensor],
    exp_avg_scale: Sequence[torch.Tensor],
    exp_avg_sq_scale: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    seed: int,
    **config: int,
) -> None:
    """Run `adam8bit_step` in Triton, in one launch."""
    from . import kernel  # noqa: PLC0415 - it needs Triton

    lists = (params, grads, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, steps)
    launching.launch(kernel.adam_step, lists, lr, (beta1, beta2, eps, weight_decay), seed, **config)


def shipped() -> Iterator[ShippedKernel]:
    """Yield the launches."""
    numbers = ("beta1", "beta2", "eps", "weight_decay")
    yield from launching.shipped("neaptide_kernels.adam8bit.kernel", "adam_step", numbers)
