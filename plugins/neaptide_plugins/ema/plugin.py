"""The plugin: averages the weights at each update and evaluates with the average."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ROLLBACK, Outcome, Plugin, hookimpl
from neaptide_toolkit.saved_form import counter

from .average import decay_at, shift, start, update, update_all
from .config import EmaConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import (
        AroundEvaluate,
        AroundTrainStep,
        Ledger,
        ParameterStore,
        Phase,
        Run,
        Span,
    )


@attrs.define(eq=False)
class Ema(Plugin[EmaConfig]):
    """Keeps an average of every trainable weight, in float32 or a wider dtype."""

    _averages: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    _updates: int = attrs.field(init=False, default=0)
    _store: ParameterStore | None = attrs.field(init=False, default=None)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Start the averages, and register for weight updates and rollbacks."""
        self._store = store
        self._start()
        self._leave = store.on_updates(self._follow)
        run.stash.on_set(ROLLBACK, self._start)

    @hookimpl
    def on_run_end(self) -> None:
        """Unregister from weight updates."""
        if self._leave is not None:
            self._leave()

    def _start(self) -> None:
        """Start the averages from the current weights."""
        assert self._store is not None, "the run has started"
        self._updates = 0
        for span in self._store.spans():
            if span.trainable:
                with self._store.loan(span, "read") as weight:
                    self._averages[span.name] = self._begun(weight)

    def _begun(self, weight: torch.Tensor) -> torch.Tensor:
        return start(weight, torch.device("cpu") if self.config.tier == "host" else None)

    def _follow(
        self, spans: list[Span], weights: list[torch.Tensor], deltas: list[torch.Tensor | None]
    ) -> None:
        decay = decay_at(self._updates + 1, self.config.decay, warmup=self.config.warmup)
        known = [span.name for span in spans if span.name in self._averages]
        if deltas[0] is None and len(known) == len(spans):
            update_all([self._averages[name] for name in known], weights, decay)
            return
        for span, weight, delta in zip(spans, weights, deltas, strict=True):
            average = self._averages.get(span.name)
            if average is None:  # the weight became trainable during the run
                self._averages[span.name] = self._begun(weight)
            elif delta is not None:
                shift(average, delta)
            else:
                update(average, weight, decay)

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count applied updates."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            trained = following(**arguments)
            self._updates += trained.outcome is Outcome.APPLIED
            return trained

        return counted

    @hookimpl
    def around_evaluate(self) -> AroundEvaluate:
        """Evaluate with the averages as weights; restore the weights bitwise afterwards."""

        def averaged(following: Callable[..., float], **arguments: Any) -> float:
            store = self._store
            assert store is not None, "evaluated before the run started"
            weights = store.snapshot()
            try:
                for span in store.spans():
                    if span.trainable and span.name in self._averages:
                        with store.loan(span, "write") as weight, torch.no_grad():
                            weight.copy_(self._averages[span.name])
                return following(**arguments)
            finally:
                store.restore(weights)

        return averaged

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the averages and, during an evaluation, a copy of the weights on the host."""
        del phase
        held = sum(average.nbytes for average in self._averages.values())
        ledger = ledger.add("ema", "average", self.config.tier, held)
        return ledger.add("ema", "weights.original", "host", held, ("evaluate",))

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the number of averaged updates."""
        return {"updates": self._updates, "averages": dict(self._averages)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ValueError if a trainable weight has no average."""
        found = {name for name, one in state["averages"].items() if one is not None}
        missing = sorted(self._averages.keys() - found)
        if missing:
            msg = f"there is no average of {', '.join(missing)}"
            raise ValueError(msg)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._updates = counter(state, "updates")
        assert self._store is not None, "the run has started"
        for span in self._store.spans():
            saved = state["averages"].get(span.name)
            if saved is not None and span.name not in self._averages:  # became trainable later
                with self._store.loan(span, "read") as weight:
                    self._averages[span.name] = self._begun(weight)
            if saved is not None:
                self._averages[span.name].copy_(saved)
