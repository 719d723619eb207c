"""The plugin: splits a batch into micro-batches, or defers the update over several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, DataError, Outcome, Plugin, hookimpl
from neaptide_toolkit.ranks.splitting import rows, split
from neaptide_toolkit.saved_form import counter

from .config import GradientAccumulationConfig
from .rate import scaled_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from neaptide import AroundOptimizerStep, Ledger, ParameterStore, Phase
    from neaptide.api.memory import Moment

_IN_A_STEP: tuple[Moment, ...] = ("forward",)
_BETWEEN: tuple[Moment, ...] = ("evaluate", "save")
"""Moments at which gradients exist only with `across_steps`."""


@attrs.define(eq=False)
class GradientAccumulation(Plugin[GradientAccumulationConfig]):
    """Accumulates gradients. The core scales them to the mean over all samples or tokens."""

    _calls: int = attrs.field(init=False, default=0)
    _store: ParameterStore = attrs.field(init=False)

    @hookimpl
    def on_run_start(self, store: ParameterStore) -> None:
        """Remember the store; ConfigError if it does not hold gradients until the update."""
        self._store = store
        if self.config.steps > 1 and not store.stores_gradients:
            msg = (
                f"steps = {self.config.steps} needs gradients that are held until the update, but "
                f"in this run blocks are updated inside the backward; split the batch in the "
                f"plugin that does so, or make it update after the backward "
                f"@ plugins.gradient-accumulation.steps"
            )
            raise ConfigError(msg)

    @hookimpl
    def plan_micro_batches(self, batch: Any) -> list[Any] | None:
        """Split the batch. Return None if each call of `trainer.step` gets only one micro-batch.

        Before that, set the count of calls to 0 if a failed call dropped the gradients of earlier
        calls.
        """
        store = self._store
        if self._calls and not any(map(store.has_gradient, store.spans())):
            self._calls = 0
        if self.config.across_steps or self.config.steps == 1:
            return None
        parts = split(batch, self.config.steps)
        if len(parts) == 1 and rows(batch) is None:
            msg = (
                f"found no tensor with samples along dim 0 in the batch to split (got "
                f"{type(batch).__name__}); use mappings, lists, tuples or dataclasses of tensors, "
                f"or across_steps = true @ plugins.gradient-accumulation.steps"
            )
            raise DataError(msg)
        return parts

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep | None:
        """Defer the update until `trainer.step` has been called `steps` times."""
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
            calls, self._calls = self._calls, 0
            # The core's scale gives the mean over all calls. Without `normalize`, this mean is
            # multiplied by the number of calls.
            scale = gradient_scale if config.normalize else gradient_scale * calls
            with scaled_rate(optimizer, config.steps if config.scale_lr else 1):
                return following(optimizer=optimizer, gradient_scale=scale, **arguments)

        return deferred

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the gradients that exist during forwards and, with `across_steps`, between steps."""
        del phase
        if self.config.steps == 1:
            return ledger
        waiting = ledger.total(kind="gradients", moment="backward")
        moments = _IN_A_STEP + _BETWEEN if self.config.across_steps else _IN_A_STEP
        return ledger.add("gradient-accumulation", "gradients", "device", waiting, moments)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of calls since the last update. The core saves the calls' gradients."""
        return {"calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._calls = counter(state, "calls")
