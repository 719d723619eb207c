"""The correction of a jump: a weighted mean of residuals, limited to a share of the jump."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.norms import long_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide import ParameterStore, Span, Update

    from .slots import Slots


@attrs.frozen(eq=False)
class Correction:
    """`factor` times the weighted mean of the residuals in the given slots."""

    slots: Slots
    weights: Sequence[tuple[int, float]]
    """Slots with their weights."""
    factor: float
    norm: float
    """L2 norm over all corrected spans, factor included."""

    def of(self, name: str) -> torch.Tensor:
        """Return the correction of a span, float32 on the host."""
        total: torch.Tensor | None = None
        for slot, weight in self.weights:
            part = self.slots.read(slot, name).mul(weight * self.factor)
            total = part if total is None else total.add_(part)
        assert total is not None, "a correction has residuals"
        return total


def correction_of(
    update: Update,
    store: ParameterStore,
    slots: Slots,
    weights: Sequence[tuple[int, float]],
    limit: float,
) -> Correction | None:
    """Return the correction of a proposed jump; None if it, or the jump, is zero or not finite.

    A residual is a change per update, so it is multiplied by the horizon of the jump. The norm is
    at most `limit` times the norm of the jump.
    """
    whole = Correction(slots, weights, float(update.horizon), 0.0)
    jumps, corrections = [], []
    for span in corrected(store, slots):
        delta = update.delta(span)
        # A wrong delta is the guard's to refuse, so it is passed on as it is.
        if not isinstance(delta, torch.Tensor) or tuple(delta.shape) != tuple(span.shape):
            if delta is None:
                continue
            return None
        jumps.append(long_norm(delta.detach().float()))
        corrections.append(long_norm(whole.of(span.name)))
    jump, norm = (math.hypot(*sorted(each)) for each in (jumps, corrections))
    if not (0.0 < norm < math.inf and 0.0 < jump < math.inf):
        return None
    share = min(1.0, limit * jump / norm)
    return attrs.evolve(whole, factor=whole.factor * share, norm=norm * share)


def applied(update: Update, correction: Correction) -> Update:
    """Return the update with the correction added, on the device of each delta."""

    def delta(span: Span) -> torch.Tensor | None:
        proposed = update.delta(span)
        if proposed is None or span.name not in correction.slots.parts:
            return proposed
        return proposed + correction.of(span.name).to(proposed.device, proposed.dtype)

    return attrs.evolve(update, delta=delta)


def corrected(store: ParameterStore, slots: Slots) -> list[Span]:
    """Return the spans that have a part in every residual."""
    return [span for span in store.spans() if span.trainable and span.name in slots.parts]
