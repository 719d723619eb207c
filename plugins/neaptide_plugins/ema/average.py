"""The arithmetic of an exponential moving average."""

from __future__ import annotations

import torch


def decay_at(update: int, decay: float, *, warmup: bool) -> float:
    """Return the decay of update number `update`, counted from 1.

    With `warmup` the decay is at most (1 + t) / (10 + t), where t is `update`. TensorFlow's
    ExponentialMovingAverage has the same limit.
    """
    return min(decay, (1 + update) / (10 + update)) if warmup else decay


def start(weight: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return the average before the first update: a copy of `weight` in float32 or wider."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return weight.detach().to(device or weight.device, dtype, copy=True)


def update(average: torch.Tensor, weight: torch.Tensor, decay: float) -> None:
    """Update `average` in place, in its dtype, to `decay * average + (1 - decay) * weight`."""
    if weight.dtype != average.dtype or weight.device != average.device:
        weight = weight.to(average.device, average.dtype)
    average.lerp_(weight, 1.0 - decay)


def update_all(averages: list[torch.Tensor], weights: list[torch.Tensor], decay: float) -> None:
    """Call `update` for each pair, with the same bits; fused if no weight is converted.

    The weights have one dtype and device.
    """
    kinds = {(each.dtype, each.device) for each in averages}
    if kinds == {(each.dtype, each.device) for each in weights[:1]}:
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        return
    for average, weight in zip(averages, weights, strict=True):
        update(average, weight, decay)


def shift(average: torch.Tensor, delta: torch.Tensor) -> None:
    """Add `delta`, the change of a weight in a jump (a predicted update), to `average` in place."""
    average.add_(delta.to(average.device, average.dtype))
