"""One cycle, from a jump to the next: what was chosen in it, its context, and its reward."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.encode_state import FEATURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

A_FORWARD = 0.5
"""Updates that a forward of the guard costs, as `delayed-verdict` counts it (decision 26)."""
CONTEXT = {
    "progress": 1.0,
    "learning_rate_share": 1.0,
    "loss_variation": 1.0,
    "loss_rise_32": 3.0,
    "loss_rise_256": 3.0,
}
"""The features in a context, and what each is divided by. Then it is limited to [-1, 1]."""
SIZE = 1 + len(CONTEXT)
_PLACES = [FEATURES.index(name) for name in CONTEXT]
_LEAST = 16
"""Losses without which the fall of the loss is not known."""


@attrs.frozen
class PhaseCycle:
    """What was chosen, as the index of a length, and in what context; before its reward."""

    jump: int
    """Number of the update after the jump."""
    full: int | None
    """None if the Full phase before the jump was not of a chosen length."""
    full_context: list[float]
    horizon: int
    horizon_context: list[float]
    updates: int
    """Ordinary updates since the jump before this one."""
    forwards: int
    """Forwards of the guard."""
    fall: float | None
    """Reduction of the loss by an update, at the jump; None if it is not known."""

    def reward(self, gain: float, horizon: int) -> float:
        """Return the updates saved, less those that the guard cost, per update of time: in [-1, 1].

        Time is counted in updates and not measured: a measured time would make the next choice
        another one in the next run, and in a resumed run.
        """
        cost = self.forwards * A_FORWARD
        return limited((saved(gain, self.fall, horizon) - cost) / max(1.0, self.updates + cost))


def saved(gain: float, fall: float | None, horizon: int) -> float:
    """Return the updates that a jump with this gain is worth, at most `horizon` either way."""
    if not math.isfinite(gain) or gain == 0.0 or fall is None:
        return 0.0
    worth = gain / fall if fall > 0.0 else math.copysign(horizon, gain)
    return max(-float(horizon), min(float(horizon), worth))


def fall_of(losses: Sequence[float]) -> float | None:
    """Return how much an update lowered the loss: half means of the losses apart, by updates."""
    half = len(losses) // 2
    if 2 * half < _LEAST:
        return None
    found = (fmean(losses[-2 * half : -half]) - fmean(losses[-half:])) / half
    return found if math.isfinite(found) else None


def context_of(features: torch.Tensor) -> list[float]:
    """Return the context, beginning with 1, from the 64 features of `encode_state`."""
    chosen = [float(features[place]) for place in _PLACES]
    scaled = zip(chosen, CONTEXT.values(), strict=True)
    return [1.0, *(limited(value / scale) for value, scale in scaled)]


def limited(value: float) -> float:
    """Return `value`, limited to [-1, 1]; 0 if it is not finite."""
    return max(-1.0, min(1.0, value)) if math.isfinite(value) else 0.0


def as_tensor(context: Sequence[float]) -> torch.Tensor:
    """Return a context as float64 `[SIZE]` on the host."""
    return torch.tensor(context, dtype=torch.float64, device="cpu")


def loaded(saved_cycle: Mapping[str, Any]) -> PhaseCycle:
    """Return the cycle that `attrs.asdict` saved."""
    return PhaseCycle(**saved_cycle)
