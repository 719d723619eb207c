"""Plans the micro-batches of a step, or defers the update over several steps."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Outcome, Plugin, hookimpl

from .config import GradientAccumulationConfig
from .split import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


@attrs.define(eq=False)
class GradientAccumulation(Plugin[GradientAccumulationConfig]):
    """The weighting is the core's: gradients are of the mean over all samples or tokens."""

    _calls: int = attrs.field(init=False, default=0)

    @hookimpl
    def plan_micro_batches(self, batch: Any) -> list[Any] | None:
        """Split the batch, unless the user's loop hands over micro-batches."""
        if self.config.across_steps or self.config.steps == 1:
            return None
        return split(batch, self.config.steps)

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Outcome] | None:
        """Hold the update back until enough calls are in."""
        config = self.config
        if not config.across_steps:
            return None

        def deferred(
            following: Callable[..., Outcome],
            *,
            optimizer: torch.optim.Optimizer,
            gradient_scale: float | torch.Tensor,
            **arguments: Any,
        ) -> Outcome:
            self._calls += 1
            if self._calls < config.steps:
                return Outcome.DEFERRED
            self._calls = 0
            # The core's scale makes the mean over all calls; times their number it is their sum.
            scale = gradient_scale if config.normalize else gradient_scale * config.steps
            with _scaled_rate(optimizer, config.steps if config.scale_lr else 1):
                return following(optimizer=optimizer, gradient_scale=scale, **arguments)

        return deferred

    def state_dict(self) -> dict[str, Any]:
        """Return how many calls are in; the core saves their gradients."""
        return {"calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._calls = state["calls"]


@contextmanager
def _scaled_rate(optimizer: torch.optim.Optimizer, factor: int) -> Iterator[None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
