"""The op `adam8bit_step`, and who provides it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import KERNELS, OpSpec, Provider, define
from neaptide_kernels.state_codes import blocks_of, compiled, launching, lists
from neaptide_kernels.state_codes.trials import StepTrials
from neaptide_kernels.support import triton_version

from . import reference, tuning

if TYPE_CHECKING:
    from collections.abc import Sequence


def check(
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
) -> None:
    """Raise ValueError for arguments that do not go together."""
    del seed
    lists.check(
        "adam8bit_step",
        params,
        grads,
        {"exp_avg": (exp_avg, torch.int8), "exp_avg_sq": (exp_avg_sq, torch.uint8)},
        {"exp_avg_scale": exp_avg_scale, "exp_avg_sq_scale": exp_avg_sq_scale},
        steps,
        lr,
    )
    lists.check_numbers(
        "adam8bit_step", beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay
    )
    if not eps:
        msg = "adam8bit_step: eps must be more than 0: a moment of 0 is divided by it"
        raise ValueError(msg)


def new_state(param: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return codes and scales of both moments and the step count, before the first step."""
    number, device = param.numel(), param.device
    return (
        torch.zeros(number, dtype=torch.int8, device=device),
        torch.zeros(number, dtype=torch.uint8, device=device),
        torch.zeros(blocks_of(number), dtype=torch.float32, device=device),
        torch.zeros(blocks_of(number), dtype=torch.float32, device=device),
        torch.zeros((), dtype=torch.float32, device=device),
    )


def _traffic(params: Any, grads: Any, *_: Any) -> int:
    return sum(
        round(param.numel() * (2 * param.element_size() + grad.element_size() + 4 + 16 / 256))
        for param, grad in zip(params, grads, strict=True)
    )


_TRIALS = StepTrials(reference.adam8bit_step, new_state, (0.9, 0.999, 1e-8, 1e-2))

adam8bit_step = define(
    OpSpec(
        name="adam8bit_step",
        summary="AdamW over many tensors with both moments in 8 bits",
        reference=reference.adam8bit_step,
        fake=lambda *_: None,
        mutates={"params", "exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"},
        check=check,
        samples=_TRIALS.samples,
        large=_TRIALS.large,
        traffic=_traffic,
        agree=lists.disagreements,
    )
)
"""See `reference.adam8bit_step`."""

COMPILED = Provider(
    op="adam8bit_step",
    name="compiled",
    run=partial(reference.by_pieces, compiled.whole_pieces(reference.piece)),
    supports=compiled.supports,
    priority=-1,
)
KERNELS.add(COMPILED)
"""Only where it was measured: its first call takes a C++ compiler's ten seconds."""

TRITON = (
    Provider(
        op=adam8bit_step.spec.name,
        name="triton",
        run=tuning.step,
        supports=lists.supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=launching.configs,
    ),
)
"""For the plugin that brings Triton into a run."""
