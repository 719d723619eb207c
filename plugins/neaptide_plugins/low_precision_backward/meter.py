"""Measures the variance that a low-precision backward adds to the gradient.

The result is the added variance, divided by the variance of the exact gradient. A measurement
takes two micro-batches. Half the squared distance between their exact gradients estimates the
variance of the exact gradient. The squared distance between the exact and the low-precision
gradient of one micro-batch estimates the variance that rounding adds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.devices import widest
from neaptide_toolkit.gradient_error import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide import ParameterStore

    Gradients = Sequence[torch.Tensor | None]

_VOID_IN_A_ROW = 3
"""Number of consecutive unusable micro-batches after which the measurement fails."""


@attrs.frozen
class VarianceVerdict:
    """The result of measuring two micro-batches."""

    ratio: float
    """Extra variance divided by the gradient's variance; inf if it cannot be measured."""
    passed: bool
    reason: str
    """One line that states why the measurement did not pass; empty if it passed."""


@attrs.define(eq=False)
class Meter:
    """Decides when to measure, and turns gradients into a verdict.

    Args:
        every: number of low-precision updates between two measurements.
        limit: largest ratio that passes.
        kept: buffers for the exact gradients of the first micro-batch, one per parameter.
    """

    every: int
    limit: float
    kept: list[torch.Tensor]
    updates: int = 0
    """Number of low-precision updates since the last measurement."""
    waiting: bool = False
    """True if the first micro-batch has been measured and the second one has not."""
    extra: float = 0.0
    """Squared error of the low-precision gradients of the first micro-batch."""
    void: int = 0
    """Number of consecutive unusable micro-batches up to now."""

    @property
    def due(self) -> bool:
        """True if the next micro-batch is to be measured."""
        return self.waiting or self.updates >= self.every

    def take(
        self, exact: Gradients, low: Gradients, factors: Gradients | None = None
    ) -> VarianceVerdict | None:
        """Take the exact and the low-precision gradients of a micro-batch.

        Return a verdict if the measurement is complete or has failed, else None.

        Args:
            exact: gradients of a full-precision backward; None for a parameter without a gradient.
            low: gradients of the same micro-batch in low precision.
            factors: the metric, see `neaptide_toolkit.gradient_error.compare`.
        """
        # Gradients that no rounding affects are omitted: their noise would hide the rounding error.
        touched = [
            one is not None and other is not None and not torch.equal(one, other)
            for one, other in zip(exact, low, strict=True)
        ]
        error = compare(_of(touched, exact), _of(touched, low), factors=factors)
        problem = ""
        if not any(touched):
            problem = "show no trace of a product in low precision"
        elif not math.isfinite(error.exact):
            problem = "are not finite"  # caused by the batch or the scale
        if problem:
            self.void += 1
            if self.void < _VOID_IN_A_ROW:
                return None
            return self._done(
                math.inf, f"the gradients of {self.void} micro-batches in a row {problem}"
            )
        self.void = 0
        if not error.finite:
            return self._done(math.inf, "its gradients are not finite where the exact ones are")
        if not self.waiting:
            for place, gradient in zip(self.kept, exact, strict=True):
                place.zero_() if gradient is None else place.copy_(gradient)
            self.waiting, self.extra = True, error.squared
            return None
        apart = compare(_of(touched, self.kept), _of(touched, exact), factors=factors)
        variance, extra = apart.squared / 2, (self.extra + error.squared) / 2
        ratio = extra / variance if variance else math.inf
        over = f"its extra variance is {ratio:.2%} of the gradient's own, over {self.limit:.2%}"
        return self._done(ratio, "" if ratio <= self.limit else over)

    def failed(self, problem: str) -> VarianceVerdict:
        """Return the verdict for gradients that could not be computed."""
        return self._done(math.inf, f"its extra variance could not be measured: {problem}")

    def _done(self, ratio: float, reason: str) -> VarianceVerdict:
        self.waiting, self.extra, self.updates, self.void = False, 0.0, 0, 0
        return VarianceVerdict(ratio, not reason, reason)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the current measurement."""
        return {
            "updates": self.updates,
            "kept": [tensor.clone() for tensor in self.kept] if self.waiting else None,
            "extra": self.extra,
            "void": self.void,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`. If it belongs to other parameters, start a new measurement."""
        self.updates, self.extra = int(state["updates"]), float(state["extra"])
        self.void, kept = int(state["void"]), state["kept"] or []
        self.waiting = bool(kept) and [each.shape for each in kept] == [
            each.shape for each in self.kept
        ]
        for place, tensor in zip(self.kept, kept if self.waiting else (), strict=False):
            place.copy_(tensor)


def _of(touched: Sequence[bool], gradients: Gradients) -> list[torch.Tensor | None]:
    return [each if here else None for here, each in zip(touched, gradients, strict=True)]


def adam_factors(store: ParameterStore, names: Sequence[str]) -> list[torch.Tensor] | None:
    """Return `1 / sqrt(v)` for each named parameter, in float64 on its device.

    The result is 0 where `v` is 0. `v` is Adam's `exp_avg_sq`. Adam multiplies the gradient by
    this factor, so an error times this factor measures how far the error moves the weights. The
    result is None unless every parameter has a floating `v` of the parameter's shape.
    """
    spans = {span.name: span for span in store.spans()}
    factors = []
    for name in names:
        parameter = store.parameters[name]
        with store.loan(spans[name], "read", of="state", on=parameter.device) as state:
            moment = state.get("exp_avg_sq")
            if moment is None or moment.shape != parameter.shape or not moment.is_floating_point():
                return None
            factor = moment.to(widest(moment.device)).rsqrt()
        factors.append(factor.masked_fill(factor.isinf(), 0.0))
    return factors
