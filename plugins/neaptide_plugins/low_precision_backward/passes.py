"""Middleware that applies a `Lowering` to forwards, backwards and updates of some phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Outcome
from neaptide_toolkit.gradient_error import is_measured

from . import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import structlog
    from torch import nn

    from neaptide import ParameterStore, Phase, WeighedLoss

    from .lowering import Lowering


@attrs.define(eq=False)
class Passes:
    """Uses a low-precision backward in the configured phases, until its error exceeds a limit.

    Args:
        lowering: the lowered weights and the measurements of their error.
        phases: names of the phases.
        store: holds the weights.
        log: the log for measurements and for weights that occurred in no product.
    """

    lowering: Lowering
    phases: Collection[str]
    store: ParameterStore
    log: structlog.BoundLogger
    _looked: bool = attrs.field(init=False, default=False)
    """True after the search for weights that occur in no product."""

    def active(self, phase: Phase) -> bool:
        """Return whether the backward of a phase is in low precision."""
        lowering = self.lowering
        return bool(lowering.chosen.names) and not lowering.refused and phase.name in self.phases

    def forward(
        self,
        following: Callable[..., WeighedLoss],
        *,
        model: nn.Module,
        phase: Phase,
        moment: str,
        **arguments: Any,
    ) -> WeighedLoss:
        """Run a training forward whose backward will be in low precision.

        If a measurement is due, measure first.
        """
        lowering = self.lowering

        def call() -> WeighedLoss:
            return following(model=model, phase=phase, moment=moment, **arguments)

        if moment != "train" or not self.active(phase) or is_measured():
            return call()
        if lowering.meter.due:
            found = lowering.measure(model, self.store, call)
            if found is not None:
                messages.measured(self.log, *found)
        if lowering.refused:
            return call()
        with lowering.lowered():
            return call()

    def backward(self, following: Callable[..., None], *, phase: Phase, **arguments: Any) -> None:
        """Run a backward in low precision.

        With activation checkpointing, a backward computes some forwards again. The products in
        these forwards also get a low-precision backward.
        """
        if not self.active(phase):
            following(phase=phase, **arguments)
            return
        with self.lowering.lowered():
            following(phase=phase, **arguments)

    def update(
        self, following: Callable[..., Outcome], *, phase: Phase, **arguments: Any
    ) -> Outcome:
        """Count the updates since the last measurement.

        Warn once about chosen weights that occurred in no product.
        """
        outcome = following(phase=phase, **arguments)
        if outcome is Outcome.APPLIED and self.active(phase):
            self.lowering.meter.updates += 1
            if not self._looked:
                messages.not_met(self.log, self.lowering)
            self._looked = True
        return outcome
