"""How much variance a low-precision backward adds to the gradient's own, and when it is too much.

Two micro-batches in a row are measured. The exact gradients of both differ by chance alone, so half
their squared distance estimates the variance of the gradient; the squared distance of exact and
low-precision gradients of one micro-batch is what the rounding adds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.gradient_error import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    Gradients = Sequence[torch.Tensor | None]

_VOID_IN_A_ROW = 3
"""Micro-batches that show nothing, after which nothing can be measured."""


@attrs.frozen
class VarianceVerdict:
    """What two micro-batches have shown."""

    ratio: float
    """Extra variance as a share of the gradient's own; inf where it cannot be told."""
    passed: bool
    reason: str
    """Why it did not pass, in one line; empty where it did."""


@attrs.define(eq=False)
class Meter:
    """Says when to measure, and what became of it.

    Args:
        every: updates between two measurements.
        limit: of the ratio.
        kept: place for the exact gradients of the first micro-batch, in their shapes.
    """

    every: int
    limit: float
    kept: list[torch.Tensor]
    updates: int = 0
    """Made in low precision since the last measurement."""
    waiting: bool = False
    """Whether a first micro-batch waits for its second."""
    extra: float = 0.0
    """Squared error of the first micro-batch."""
    void: int = 0

    @property
    def due(self) -> bool:
        """Whether the next micro-batch is to be measured."""
        return self.waiting or self.updates >= self.every

    def take(
        self, exact: Gradients, low: Gradients, factors: Gradients | None = None
    ) -> VarianceVerdict | None:
        """Take both gradients of a micro-batch; return a verdict after every second one.

        Args:
            exact: gradients of a full-precision backward.
            low: of the same micro-batch, in low precision.
            factors: the metric, see `neaptide_toolkit.gradient_error.compare`.
        """
        # Of what no rounding has touched the noise would only hide what the rounding adds.
        touched = [
            one is not None and other is not None and not torch.equal(one, other)
            for one, other in zip(exact, low, strict=True)
        ]
        error = compare(_of(touched, exact), _of(touched, low), factors=factors)
        problem = ""
        if not any(touched):
            problem = "show no trace of a product in low precision"
        elif not math.isfinite(error.exact):
            problem = "are not finite"  # the batch or the loss scale is at fault
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
        """Return the verdict on gradients that could not be taken."""
        return self._done(math.inf, f"its extra variance could not be measured: {problem}")

    def _done(self, ratio: float, reason: str) -> VarianceVerdict:
        self.waiting, self.extra, self.updates, self.void = False, 0.0, 0, 0
        return VarianceVerdict(ratio, not reason, reason)

    def state_dict(self) -> dict[str, Any]:
        """Return where it is."""
        return {
            "updates": self.updates,
            "kept": [tensor.clone() for tensor in self.kept] if self.waiting else None,
            "extra": self.extra,
            "void": self.void,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; begin a measurement anew that was of others."""
        self.updates, self.extra = int(state["updates"]), float(state["extra"])
        self.void, kept = int(state["void"]), state["kept"] or []
        self.waiting = bool(kept) and [each.shape for each in kept] == [
            each.shape for each in self.kept
        ]
        for place, tensor in zip(self.kept, kept if self.waiting else (), strict=False):
            place.copy_(tensor)


def _of(touched: Sequence[bool], gradients: Gradients) -> list[torch.Tensor | None]:
    return [each if here else None for here, each in zip(touched, gradients, strict=True)]


def adam_factors(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]
) -> list[torch.Tensor] | None:
    """Return `1 / sqrt(v)` of each parameter, 0 where v is; None unless all have a moment like it.

    `v` is Adam's `exp_avg_sq`; the update is the gradient times this, so errors count as much as
    they move weights.
    """
    factors = []
    for parameter in parameters:
        moment = optimizer.state.get(parameter, {}).get("exp_avg_sq")
        if moment is None or moment.shape != parameter.shape or not moment.is_floating_point():
            return None
        factor = moment.to(parameter.device).double().rsqrt()
        factors.append(factor.masked_fill(factor.isinf(), 0.0))
    return factors
