"""The plugin through which the loop of another library calls the parts of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Outcome, Plugin, PluginSpec, Trained, hookimpl
from neaptide.plugin import NoConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from neaptide import (
        AroundForward,
        AroundOptimizerStep,
        AroundTrainStep,
        Phase,
        WeighedLoss,
    )


class _NoMicroBatches(list[Any]):
    """No micro-batch; true, so that the loop does not take the batch itself instead."""

    def __bool__(self) -> bool:
        return True


@attrs.define(eq=False)
class StepInPieces(Plugin[NoConfig]):
    """Defers the update of each step until a step is called to update only."""

    updating: bool = attrs.field(init=False, default=False)
    """Whether the present step only updates."""
    norm: torch.Tensor | None = attrs.field(init=False, default=None)
    """L2 norm of the gradients before the other library clipped them; None if not measured."""
    calling: Callable[[Phase], None] | None = attrs.field(init=False, default=None)
    """A forward that the user's loop makes, and that is all of the present step."""
    handed: WeighedLoss | None = attrs.field(init=False, default=None)
    """The loss of such a forward, of which the present step makes the backward."""
    modes: Mapping[nn.Module, bool] = attrs.field(init=False, factory=dict)
    """Train modes that the present step must not change."""

    @hookimpl(tryfirst=True)
    def plan_micro_batches(self) -> list[Any] | None:
        """Return no micro-batch for a step that only updates."""
        return _NoMicroBatches() if self.updating else None

    @hookimpl(trylast=True)
    def around_train_step(self) -> AroundTrainStep:
        """Make a forward alone; report the gradients' norm as before the other library clipped."""

        def step(following: Callable[..., Trained], *, phase: Phase, **arguments: Any) -> Trained:
            for module, training in self.modes.items():
                module.training = training
            if self.calling is not None:
                self.calling(phase)
                return Trained(torch.zeros(()), None, Outcome.DEFERRED)
            trained = following(phase=phase, **arguments)
            known = self.updating and self.norm is not None
            return attrs.evolve(trained, gradient_norm=self.norm) if known else trained

        return step

    @hookimpl(tryfirst=True)
    def around_forward(self) -> AroundForward:
        """Return the loss of a forward that was made before; its middleware has run."""

        def forward(
            following: Callable[..., WeighedLoss], *, moment: str, **arguments: Any
        ) -> WeighedLoss:
            if self.handed is not None and moment == "train":
                return self.handed
            return following(moment=moment, **arguments)

        return forward

    @hookimpl(tryfirst=True)
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Defer the update of a step with a micro-batch."""

        def update(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            return following(**arguments) if self.updating else Outcome.DEFERRED

        return update


SPEC = PluginSpec(
    name="step-in-pieces",
    load=f"{__name__}:{StepInPieces.__name__}",
    summary="Lets the loop of another library call the parts of a step.",
    claims={"gradient.accumulation"},
)
"""Not installed: only the integrations enable it."""
