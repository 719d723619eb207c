"""Lion with an 8-bit momentum in plain torch: what the kernel must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from neaptide_kernels import state_codes as codes
from neaptide_kernels.registry import takes


class Lion8bitStep(NamedTuple):
    """The arguments of `lion8bit_step`."""

    params: Sequence[torch.Tensor]
    """float32 or bfloat16, any shapes."""
    grads: Sequence[torch.Tensor]
    """float32 or bfloat16, of those shapes."""
    exp_avg: Sequence[torch.Tensor]
    """int8 `[elements]` each, codes of the momentum, in the order of `param.flatten()`; zeros
    before the first step."""
    exp_avg_scale: Sequence[torch.Tensor]
    """float32 `[blocks]`, a scale for 256 codes."""
    steps: Sequence[torch.Tensor]
    """0-dim float32, which update of its parameter this is, from 1."""
    lr: torch.Tensor
    """Learning rate, 0-dim float32."""
    beta1: float = 0.9
    """Share of the momentum in the update, in [0, 1)."""
    beta2: float = 0.99
    """Decay of the momentum, in [0, 1)."""
    weight_decay: float = 0.0
    """Decoupled; times `lr` it is the share of a weight that goes."""
    seed: int = 0
    """Of the rounding."""


@takes(Lion8bitStep)
def lion8bit_step(call: Lion8bitStep) -> None:
    """Update weights and their 8-bit momentum in place; see `state_codes` for the codes.

    Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023). Arithmetic is
    float32, with betas as float32 has them, in this order: the momentum is decoded; the weight
    becomes `w (1 - lr weight_decay) - lr sign(m beta1 + g (1 - beta1))`; the momentum moves to
    `m beta2 + g (1 - beta2)` and is encoded. It is rounded, and so is a bfloat16 weight, by random
    numbers that seed, step, the tensor's place in the list and the element's in the tensor
    determine: the same call gives the same bits.

    A gradient that is NaN leaves NaN in its weight; with an inf or a NaN the momentum of its block
    of 256 is NaN from then on.
    """
    by_pieces(*call, update=piece)


@takes(Lion8bitStep)
def by_pieces(call: Lion8bitStep, *, update: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Do `lion8bit_step`, where `update` does what `piece` does."""
    kept = 1 - call.lr * call.weight_decay
    factors = (kept, call.lr, *codes.as_float32(call.beta1, call.beta2))
    codes.update_by_pieces(call[:5], call.seed, update, lambda _: factors)


def piece(
    weight: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    gradient: torch.Tensor,
    stream: codes.Stream,
    start: torch.Tensor,
    kept: torch.Tensor,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
) -> tuple[torch.Tensor, ...]:
    """Return the first three, a stretch of whole blocks of one tensor and its state, updated."""
    bits = stream.bits(start, len(weight))
    g = gradient.float()
    m = codes.decode_signed(mean, scale)
    moved = m * beta1 + g * (1 - beta1)
    sign = torch.where(moved > 0, 1.0, torch.where(moved < 0, -1.0, moved))
    updated = weight.float() * kept - sign * lr
    fraction, _ = codes.fractions(bits)
    mean, scale = codes.encode_signed(m * beta2 + g * (1 - beta2), fraction)
    return codes.stored(updated, weight.dtype, codes.third(bits)), mean, scale
