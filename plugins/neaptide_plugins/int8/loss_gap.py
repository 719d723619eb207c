"""Decides when to measure the loss gap, and which weights to exempt from quantization."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.define(eq=False)
class LossGap:
    """Periodically compares the loss of quantized weights with the loss of the full weights.

    Args:
        every: measure in every n-th Predict phase that uses int8, where n is this value; 0 disables
            measurements.
        limit: if the gap exceeds this limit, the weights with the largest errors are exempted.
            None: no weight is ever exempted.
    """

    every: int
    limit: float | None
    holdings: int = attrs.field(init=False, default=0)
    exempt: list[str] = attrs.field(init=False, factory=list)
    """Names of weights that are no longer quantized."""
    measured: dict[str, float] = attrs.field(init=False, factory=dict)

    def is_due(self) -> bool:
        """Count a Predict phase that uses int8; return whether to measure in this phase."""
        self.holdings += 1
        return self.every > 0 and (self.holdings - 1) % self.every == 0

    def note(self, full: float, quantized: float, errors: Mapping[str, float]) -> list[str]:
        """Record two losses of one batch and the errors of the weights; return newly exempt names.

        If the loss of the full weights is not finite, nothing is recorded.
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
    """Return the quarter of the names with the largest errors, but at least one name.

    NaN counts as the largest error; equal errors are ordered by name.
    """
    ordered = sorted(errors, key=lambda name: (_rank(errors[name]), name), reverse=True)
    return ordered[: max(1, len(ordered) // 4)]


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
