"""Lion with an 8-bit momentum in plain torch: the reference for the kernel."""

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
    """float32 or bfloat16, of the shapes of `params`."""
    exp_avg: Sequence[torch.Tensor]
    """Codes of each momentum, int8 `[elements]`, in the order of `param.flatten()`. Before the
    first step all codes are 0."""
    exp_avg_scale: Sequence[torch.Tensor]
    """Scales of the codes, float32 `[blocks]`; a block has 256 codes."""
    steps: Sequence[torch.Tensor]
    """The number of this update for each parameter, 0-dim float32; the first update is 1."""
    lr: torch.Tensor
    """Learning rate, 0-dim float32."""
    beta1: float = 0.9
    """Share of the momentum in the update, in [0, 1)."""
    beta2: float = 0.99
    """Decay of the momentum, in [0, 1)."""
    weight_decay: float = 0.0
    """Decoupled: an update shrinks each weight by the fraction `lr * weight_decay`."""
    seed: int = 0
    """Seed of the stochastic rounding."""


@takes(Lion8bitStep)
def lion8bit_step(call: Lion8bitStep) -> None:
    """Update weights and their 8-bit momentum in place; see `state_codes` for the codes.

    The optimizer Lion is from Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    Arithmetic is float32, with the betas rounded to float32. The order of operations is:

    1. The momentum is decoded.
    2. The weight becomes `w (1 - lr weight_decay) - lr sign(m beta1 + g (1 - beta1))`.
    3. The momentum becomes `m beta2 + g (1 - beta2)` and is encoded.

    The momentum and bfloat16 weights are rounded stochastically. The random numbers depend only on
    the seed, the step, the tensor's place in the list and the element's place in the tensor. So
    equal calls give equal bits.

    If an element of a gradient is NaN, the weight at this element becomes NaN. If an element of a
    gradient is inf or NaN, the momentum of the element's block of 256 elements is NaN from then on.
    """
    by_pieces(*call, update=piece)


@takes(Lion8bitStep)
def by_pieces(call: Lion8bitStep, *, update: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Run `lion8bit_step`, but call `update` instead of `piece`. It may update in place."""
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
    """Return the updated values of the first three arguments.

    The arguments contain whole blocks of one tensor and of the tensor's state.
    """
    bits = stream.bits(start, len(weight))
    g = gradient.float()
    m = codes.decode_signed(mean, scale)
    moved = m * beta1 + g * (1 - beta1)
    sign = torch.where(moved > 0, 1.0, torch.where(moved < 0, -1.0, moved))
    updated = weight.float() * kept - sign * lr
    fraction, _ = codes.fractions(bits)
    mean, scale = codes.encode_signed(m * beta2 + g * (1 - beta2), fraction)
    return codes.stored(updated, weight.dtype, codes.third(bits)), mean, scale
