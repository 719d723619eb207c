"""Lion with an 8-bit momentum in plain torch: what the kernel must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neaptide_kernels import state_codes as codes


def lion8bit_step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avg: Sequence[torch.Tensor],
    exp_avg_scale: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    lr: torch.Tensor,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> None:
    """Update weights and their 8-bit momentum in place; see `state_codes` for the codes.

    Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023). Arithmetic is
    float32, with betas as float32 has them, in this order: the momentum is decoded; the weight
    becomes `w (1 - lr weight_decay) - lr sign(m beta1 + g (1 - beta1))`; the momentum moves to
    `m beta2 + g (1 - beta2)` and is encoded. It is rounded, and so is a bfloat16 weight, by random
    numbers that seed, step, the tensor's place in the list and the element's in the tensor
    determine: the same call gives the same bits.

    A gradient that is NaN leaves NaN in its weight; with an inf or a NaN the momentum of its block
    of 256 is NaN from then on.

    Args:
        params: float32 or bfloat16, any shapes.
        grads: float32 or bfloat16, of those shapes.
        exp_avg: int8 `[elements]` each, codes of the momentum, in the order of `param.flatten()`;
            zeros before the first step.
        exp_avg_scale: float32 `[blocks]`, a scale for 256 codes.
        steps: 0-dim float32, which update of its parameter this is, from 1.
        lr: learning rate, 0-dim float32.
        beta1: share of the momentum in the update, in [0, 1).
        beta2: decay of the momentum, in [0, 1).
        weight_decay: decoupled; times `lr` it is the share of a weight that goes.
        seed: of the rounding.
    """
    by_pieces(
        piece, params, grads, exp_avg, exp_avg_scale, steps, lr, beta1, beta2, weight_decay, seed
    )


def by_pieces(
    update: Callable[..., tuple[torch.Tensor, ...]],
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
    """Do `lion8bit_step`, where `update` does what `piece` does."""
    decays = torch.tensor([beta1, beta2], dtype=torch.float32, device="cpu").tolist()
    kept = 1 - lr * weight_decay
    lists = (params, grads, exp_avg, exp_avg_scale, steps)
    for place, (param, grad, mean, scale, step) in enumerate(zip(*lists, strict=True)):
        stream = codes.stream(seed, step)
        weight, gradient = param.reshape(-1), grad.reshape(-1)
        for part, blocks in codes.pieces(len(weight), weight.device):
            start = step.new_full((), place * codes.TENSOR + part.start, dtype=torch.int64)
            targets = (weight[part], mean[part], scale[blocks])
            updated = update(*targets, gradient[part], stream, start, kept, lr, *decays)
            for target, value in zip(targets, updated, strict=True):
                target.copy_(value)
        if not param.is_contiguous():
            param.copy_(weight.view(param.shape))


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
