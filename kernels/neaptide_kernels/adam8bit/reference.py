"""AdamW with 8-bit moments in plain torch: what the kernel must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neaptide_kernels import state_codes as codes


def adam8bit_step(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avg: Sequence[torch.Tensor],
    exp_avg_sq: Sequence[torch.Tensor],
    exp_avg_scale: Sequence[torch.Tensor],
    exp_avg_sq_scale: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    lr: torch.Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    seed: int = 0,
) -> None:
    """Update weights and their 8-bit moments in place; see `state_codes` for the codes.

    Arithmetic is float32, with betas as float32 has them, in this order: the moments are decoded
    and moved to `m = m beta1 + g (1 - beta1)` and `v = v beta2 + g g (1 - beta2)`; the weight
    becomes `w (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) +
    eps)`; the moments are encoded. So the update is made of moments that are not rounded yet. A
    moment is rounded, and so is a bfloat16 weight, by random numbers that seed, step, the tensor's
    place in the list and the element's in the tensor determine: the same call gives the same bits.

    An inf or a NaN in a gradient leaves NaN in the moments of its block of 256.

    Args:
        params: float32 or bfloat16, any shapes.
        grads: float32 or bfloat16, of those shapes.
        exp_avg: int8 `[elements]` each, codes of the first moment, in the order of
            `param.flatten()`; zeros before the first step.
        exp_avg_sq: uint8 `[elements]`, codes of the second.
        exp_avg_scale: float32 `[blocks]`, a scale for 256 codes.
        exp_avg_sq_scale: float32 `[blocks]`.
        steps: 0-dim float32, which update of its parameter this is, from 1.
        lr: learning rate, 0-dim float32.
        beta1: decay of the first moment, in [0, 1).
        beta2: decay of the second moment, in [0, 1).
        eps: added to the root of the second moment, more than 0.
        weight_decay: decoupled; times `lr` it is the share of a weight that goes.
        seed: of the rounding.
    """
    by_pieces(
        piece, params, grads, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, steps, lr,
        beta1, beta2, eps, weight_decay, seed,
    )  # fmt: skip


def by_pieces(
    update: Callable[..., tuple[torch.Tensor, ...]],
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
    """Do `adam8bit_step`, where `update` does what `piece` does."""
    decays = torch.tensor([beta1, beta2], dtype=torch.float32, device="cpu").tolist()
    kept = 1 - lr * weight_decay
    lists = (params, grads, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, steps)
    for place, (param, grad, mean, square, mean_scale, square_scale, step) in enumerate(
        zip(*lists, strict=True)
    ):
        corrections = [1 - decay ** step.double() for decay in decays]
        factors = ((1 / corrections[0]).float(), (1 / corrections[1].sqrt()).float(), kept, lr)
        stream = codes.stream(seed, step)
        weight, gradient = param.reshape(-1), grad.reshape(-1)
        for part, blocks in codes.pieces(len(weight), weight.device):
            start = step.new_full((), place * codes.TENSOR + part.start, dtype=torch.int64)
            moments = (mean[part], square[part], mean_scale[blocks], square_scale[blocks])
            targets = (weight[part], *moments)
            updated = update(*targets, gradient[part], stream, start, *factors, *decays, eps)
            for target, value in zip(targets, updated, strict=True):
                target.copy_(value)
        if not param.is_contiguous():
            param.copy_(weight.view(param.shape))


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
    """Return the first five, a stretch of whole blocks of one tensor and its state, updated."""
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
