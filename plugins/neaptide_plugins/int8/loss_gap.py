"""When the cost of int8 is measured, what it was, and which weights pay for one too high."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.define(eq=False)
class LossGap:
    """Compares the loss of quantized weights with that of the full ones, now and then.

    Args:
        every: holdings from one measurement to the next; 0 is never.
        limit: the gap from which precision is raised; None never raises it.
    """

    every: int
    limit: float | None
    holdings: int = attrs.field(init=False, default=0)
    exempt: list[str] = attrs.field(init=False, factory=list)
    """Weights that keep their precision from now on."""
    measured: dict[str, float] = attrs.field(init=False, factory=dict)

    def is_due(self) -> bool:
        """Count one more holding; return whether to measure it."""
        self.holdings += 1
        return self.every > 0 and (self.holdings - 1) % self.every == 0

    def note(self, full: float, quantized: float, errors: Mapping[str, float]) -> list[str]:
        """Take two losses of the same batch and the weights' errors; return what is now exempt.

        Where the full weights have no finite loss there is nothing to compare with.
        """
        if not math.isfinite(full):
            return []
        gap = relative_gap(full, quantized)
        self.measured = {
            "loss_gap": gap,
            "quantization_error": max(errors.values(), key=_rank, default=0.0),
        }
        if self.limit is None or gap <= self.limit or not errors:
            return []
        raised = worst_quarter(errors)
        self.exempt += raised
        return raised

    def told(self) -> str:
        """Return what was measured last, in a line."""
        if not self.measured:
            return "the loss gap was not measured"
        gap, error = self.measured["loss_gap"], self.measured["quantization_error"]
        return f"loss gap {gap:+.2e}, largest error of a weight {error:.2e}, as last measured"

    def state_dict(self) -> dict[str, Any]:
        """Return when to measure again, and what is exempt."""
        return {"held_phases": self.holdings, "exempt": list(self.exempt)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.holdings, self.exempt = state["held_phases"], list(state["exempt"])


def relative_gap(full: float, quantized: float) -> float:
    """Return how much greater the loss of quantized weights is, over the full ones' magnitude.

    Infinite where the former is not finite; the latter is.
    """
    if not math.isfinite(quantized):
        return math.inf
    return (quantized - full) / max(abs(full), 1e-12)


def worst_quarter(errors: Mapping[str, float]) -> list[str]:
    """Return the names with the largest errors, a quarter of all and at least one.

    NaN is the largest. Ties go by name.
    """
    ordered = sorted(errors, key=lambda name: (_rank(errors[name]), name), reverse=True)
    return ordered[: max(1, len(ordered) // 4)]


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
