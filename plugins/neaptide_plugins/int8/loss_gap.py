"""The loss gap of int8 weights: when to measure it, its value, and which weights to exempt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.define(eq=False)
class LossGap:
    """Compares the loss of quantized weights periodically with that of the full weights.

    Args:
        every: Predict phases with int8 from one measurement to the next; 0 disables them.
        limit: a larger gap exempts the weights with the largest errors; None exempts no weights.
    """

    every: int
    limit: float | None
    holdings: int = attrs.field(init=False, default=0)
    exempt: list[str] = attrs.field(init=False, factory=list)
    """Names of weights that are no longer quantized."""
    measured: dict[str, float] = attrs.field(init=False, factory=dict)

    def is_due(self) -> bool:
        """Count a Predict phase with int8; return whether to measure in it."""
        self.holdings += 1
        return self.every > 0 and (self.holdings - 1) % self.every == 0

    def note(self, full: float, quantized: float, errors: Mapping[str, float]) -> list[str]:
        """Record two losses of one batch and the weights' errors; return newly exempted names.

        If the full weights' loss is not finite, nothing is recorded.
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
        """Return the last measurement as a line of text."""
        if not self.measured:
            return "the loss gap was not measured"
        gap, error = self.measured["loss_gap"], self.measured["quantization_error"]
        return f"loss gap {gap:+.2e}, largest error of a weight {error:.2e}, as last measured"

    def state_dict(self) -> dict[str, Any]:
        """Return the count of Predict phases and the exempt weights."""
        return {"held_phases": self.holdings, "exempt": list(self.exempt)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.holdings, self.exempt = state["held_phases"], list(state["exempt"])


def relative_gap(full: float, quantized: float) -> float:
    """Return (quantized - full) / |full|, or inf if `quantized` is not finite.

    `full` must be finite.
    """
    if not math.isfinite(quantized):
        return math.inf
    return (quantized - full) / max(abs(full), 1e-12)


def worst_quarter(errors: Mapping[str, float]) -> list[str]:
    """Return the quarter of the names with the largest errors, at least one.

    NaN counts as the largest error; equal errors are ordered by name.
    """
    ordered = sorted(errors, key=lambda name: (_rank(errors[name]), name), reverse=True)
    return ordered[: max(1, len(ordered) // 4)]


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
