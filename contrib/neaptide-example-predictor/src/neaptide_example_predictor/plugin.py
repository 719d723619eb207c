"""An update predictor: computes a running mean of the updates, and proposes a multiple of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ROLLBACK, Plugin, Update, hookimpl

from .config import ExamplePredictorConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Ledger, ParameterStore, Phase, Run, Span

_HOST = torch.device("cpu")


@attrs.define(eq=False)
class ExamplePredictor(Plugin[ExamplePredictorConfig]):
    """Stores two float32 tensors per weight on the host: the last value, and the mean update."""

    _last: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    _mean: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    _seen: dict[str, int] = attrs.field(init=False, factory=dict)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Copy the weights, and register callbacks for updates and rollbacks."""
        self._begin(store)
        self._leave = store.on_update(self._follow)
        run.stash.on_set(ROLLBACK, lambda: self._begin(store))

    def _begin(self, store: ParameterStore) -> None:
        """Start from the current weights, without updates."""
        for span in store.spans():
            if span.trainable:
                with store.loan(span, "read") as weight:
                    self._last[span.name] = weight.detach().to(_HOST, torch.float32, copy=True)
                self._mean[span.name] = torch.zeros_like(self._last[span.name])
                self._seen[span.name] = 0

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the callback."""
        if self._leave is not None:
            self._leave()

    def _follow(self, span: Span, weight: torch.Tensor, delta: torch.Tensor | None) -> None:
        now = weight.to(_HOST, torch.float32)
        if delta is None:
            update = now - self._last[span.name]
            self._mean[span.name].lerp_(update, 1.0 - self.config.decay)
            self._seen[span.name] += 1
        else:
            self._seen[span.name] = 0
        self._last[span.name].copy_(now)

    @hookimpl
    def propose_update(self, horizon: int) -> Update | None:
        """Propose up to `horizon` times the mean update.

        The method proposes nothing until the mean contains `min_updates` updates.
        """
        seen = min(self._seen.values(), default=0)
        if seen < self.config.min_updates:
            return None
        steps = min(horizon, self.config.horizon)
        # The mean started at zero. The division corrects this bias, which is decay ** seen.
        scale = steps / (1.0 - self.config.decay**seen)
        return Update(steps, lambda span: self._mean[span.name] * scale)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Return a copy of `ledger` (memory estimate) with the bytes that the plugin stores."""
        del phase
        held = sum(tensor.nbytes for kept in (self._last, self._mean) for tensor in kept.values())
        return ledger.add("example-predictor", "predictor", "host", held)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"last": dict(self._last), "mean": dict(self._mean), "seen": dict(self._seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._last = dict(state["last"])
        self._mean = dict(state["mean"])
        self._seen = dict(state["seen"])
