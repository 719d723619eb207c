"""AdamW with 8-bit moments in plain torch: the reference for the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from neaptide_kernels import state_codes as codes
from neaptide_kernels.registry import takes


class Adam8bitStep(NamedTuple):
    """The arguments of `adam8bit_step`."""

    params: Sequence[torch.Tensor]
    """float32 or bfloat16, any shapes."""
    grads: Sequence[torch.Tensor]
    """float32 or bfloat16, of the shapes of `params`."""
    exp_avg: Sequence[torch.Tensor]
    """Codes of each first moment, int8 `[elements]`, in the order of `param.flatten()`. Before the
    first step all codes are 0."""
    exp_avg_sq: Sequence[torch.Tensor]
    """Codes of each second moment, uint8 `[elements]`."""
    exp_avg_scale: Sequence[torch.Tensor]
    """Scales of `exp_avg`, float32 `[blocks]`; a block has 256 codes."""
    exp_avg_sq_scale: Sequence[torch.Tensor]
    """Scales of `exp_avg_sq`, float32 `[blocks]`."""
    steps: Sequence[torch.Tensor]
    """The number of this update for each parameter, 0-dim float32; the first update is 1."""
    lr: torch.Tensor
    """Learning rate, 0-dim float32."""
    beta1: float = 0.9
    """Decay of the first moment, in [0, 1)."""
    beta2: float = 0.999
    """Decay of the second moment, in [0, 1)."""
    eps: float = 1e-8
    """Added to the square root of the second moment; must be more than 0."""
    weight_decay: float = 1e-2
    """Decoupled: an update shrinks each weight by the fraction `lr * weight_decay`."""
    seed: int = 0
    """Seed of the stochastic rounding."""


@takes(Adam8bitStep)
def adam8bit_step(call: Adam8bitStep) -> None:
    """Update weights and their 8-bit moments in place; see `state_codes` for the codes.

    Arithmetic is float32, with the betas rounded to float32. The order of operations is:

    1. The moments are decoded.
    2. The moments become `m = m beta1 + g (1 - beta1)` and `v = v beta2 + g g (1 - beta2)`.
    3. The weight becomes
       `w (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)`.
    4. The moments are encoded.

    So the weights are updated with moments that are not yet rounded. Moments and bfloat16 weights
    are rounded stochastically. The random numbers depend only on the seed, the step, the tensor's
    place in the list and the element's place in the tensor. So equal calls give equal bits.

    If an element of a gradient is inf or NaN, the moments of the element's block of 256 elements
    are NaN from then on.
    """
    by_pieces(*call, update=piece)


@takes(Adam8bitStep)
def by_pieces(call: Adam8bitStep, *, update: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Run `adam8bit_step`, but call `update` instead of `piece`. It may update in place."""
    decays = codes.as_float32(call.beta1, call.beta2)
    kept = 1 - call.lr * call.weight_decay

    def factors(step: torch.Tensor) -> tuple[torch.Tensor | float, ...]:
        mean, square = (1 - decay ** step.double() for decay in decays)
        return (1 / mean).float(), (1 / square.sqrt()).float(), kept, call.lr, *decays, call.eps

    codes.update_by_pieces(call[:7], call.seed, update, factors)


def piece(
    weight: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    mean_scale: torch.Tensor,
    square_scale: torch.Tensor,
    gradient: torch.Tensor,
    stream: codes.Stream,
    start: torch.Tensor,
    mean_factor: torch.Tensor,
    root_factor: torch.Tensor,
    kept: torch.Tensor,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Return the updated values of the first five arguments.

    The arguments contain whole blocks of one tensor and of the tensor's state.
    """
    bits = stream.bits(start, len(weight))
    for_mean, for_square = codes.fractions(bits)
    g = gradient.float()
    m = codes.decode_signed(mean, mean_scale) * beta1 + g * (1 - beta1)
    v = codes.decode_unsigned(square, square_scale) * beta2 + (g * g) * (1 - beta2)
    update = (m * mean_factor) / (codes.root(v) * root_factor + eps)
    updated = weight.float() * kept - update * lr
    mean, mean_scale = codes.encode_signed(m, for_mean)
    square, square_scale = codes.encode_unsigned(v, for_square)
    weight = codes.stored(updated, weight.dtype, codes.third(bits))
    return weight, mean, square, mean_scale, square_scale
