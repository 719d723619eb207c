"""The op `lion8bit_step`, and who provides it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide.kernels import KERNELS, OpSpec, Provider, Sample, define
from neaptide_kernels.state_codes import blocks_of, compiled, lists
from neaptide_kernels.state_codes.trials import gradients, weights
from neaptide_kernels.support import triton_version

from . import reference, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LARGE = 1 << 24


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


def _samples(device: torch.device) -> Iterator[Sample]:
    for dtype, grad_dtype in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ):
        for name, grads in gradients(grad_dtype, device):
            yield Sample(
                name=f"{dtype} by {grad_dtype}, {name}",
                arguments=_stepped(weights(dtype, grads), grads),
            )


def _stepped(
    params: list[torch.Tensor], grads: list[torch.Tensor], times: int = 2
) -> tuple[Any, ...]:
    """Return arguments whose state has seen some steps already."""
    state = [list(each) for each in zip(*map(new_state, params), strict=True)]
    lr = torch.tensor(1e-2, dtype=torch.float32, device=params[0].device)
    for count in range(1, 1 + times):
        for step in state[-1]:
            step.fill_(count)
        gradient = [(grad.nan_to_num(0, 0, 0) * count).contiguous() for grad in grads]
        arguments: tuple[Any, ...] = (params, gradient, *state, lr)
        reference.lion8bit_step(*arguments)
    for place, step in enumerate(state[-1]):
        step.fill_(3 + 1000 * place)
    return (params, grads, *state, lr, 0.9, 0.99, 1e-2, 5)


def _large(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.float32, torch.bfloat16):
        grads = [torch.randn(_LARGE // 16, device=device).to(dtype) for _ in range(16)]
        arguments = _stepped(weights(dtype, grads), grads, times=0)
        yield Sample(name=f"16 of 1M {dtype}", arguments=arguments)


def _traffic(params: Any, grads: Any, *_: Any) -> int:
    return sum(
        round(param.numel() * (2 * param.element_size() + grad.element_size() + 2 + 8 / 256))
        for param, grad in zip(params, grads, strict=True)
    )


lion8bit_step = define(
    OpSpec(
        name="lion8bit_step",
        summary="Lion over many tensors with its momentum in 8 bits",
        reference=reference.lion8bit_step,
        fake=lambda *_: None,
        mutates={"params", "exp_avg", "exp_avg_scale"},
        check=check,
        samples=_samples,
        large=_large,
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
        configs=tuning.configs,
    ),
)
"""For the plugin that brings Triton into a run."""
