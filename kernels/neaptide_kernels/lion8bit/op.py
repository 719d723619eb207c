"""The op `lion8bit_step`, and who provides it."""

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
    exp_avg_scale: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    seed: int,
) -> None:
    """Raise ValueError for arguments that do not go together."""
    del seed
    lists.check(
        "lion8bit_step",
        params,
        grads,
        {"exp_avg": (exp_avg, torch.int8)},
        {"exp_avg_scale": exp_avg_scale},
        steps,
        lr,
    )
    lists.check_numbers("lion8bit_step", beta1=beta1, beta2=beta2, weight_decay=weight_decay)


def new_state(param: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return codes and scales of the momentum and the step count, before the first step."""
    number, device = param.numel(), param.device
    return (
        torch.zeros(number, dtype=torch.int8, device=device),
        torch.zeros(blocks_of(number), dtype=torch.float32, device=device),
        torch.zeros((), dtype=torch.float32, device=device),
    )


def _traffic(params: Any, grads: Any, *_: Any) -> int:
    return sum(
        round(param.numel() * (2 * param.element_size() + grad.element_size() + 2 + 8 / 256))
        for param, grad in zip(params, grads, strict=True)
    )


_TRIALS = StepTrials(reference.lion8bit_step, new_state, (0.9, 0.99, 1e-2))

lion8bit_step = define(
    OpSpec(
        name="lion8bit_step",
        summary="Lion over many tensors with its momentum in 8 bits",
        reference=reference.lion8bit_step,
        fake=lambda *_: None,
        mutates={"params", "exp_avg", "exp_avg_scale"},
        check=check,
        samples=_TRIALS.samples,
        large=_TRIALS.large,
        traffic=_traffic,
        agree=lists.disagreements,
    )
)
"""See `reference.lion8bit_step`."""

COMPILED = Provider(
    op="lion8bit_step",
    name="compiled",
    run=partial(reference.by_pieces, compiled.whole_pieces(reference.piece)),
    supports=compiled.supports,
    priority=-1,
)
KERNELS.add(COMPILED)
"""Only where it was measured: its first call takes a C++ compiler's ten seconds."""

TRITON = (
    Provider(
        op=lion8bit_step.spec.name,
        name="triton",
        run=tuning.step,
        supports=lists.supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=launching.configs,
    ),
)
"""For the plugin that brings Triton into a run."""
