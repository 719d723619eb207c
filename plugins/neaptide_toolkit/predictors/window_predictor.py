"""Base class of predictors that propose a jump (a change of the weights) after each full window."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs

from neaptide import PACE, PREDICT, ROLLBACK, WARMUP, Outcome, Pace, Plugin, Update, hookimpl
from neaptide_toolkit.saved_form import counter

from .declining import declined
from .deltas import Deltas
from .gains import Gains
from .held_tensors import Storage, WindowOps, held_bytes, storage_for
from .settings import WindowSettings
from .spread_search import SpreadSearch, searching_bytes
from .window import Window, window_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neaptide import AroundTrainStep, Ledger, ParameterStore, Phase, Run, Span
    from neaptide.api.memory import Tier
    from neaptide.api.steps import Probe

    from .window import WindowPlan

S = TypeVar("S", bound=WindowSettings)


@attrs.define(eq=False)
class WindowPredictor(Plugin[S]):
    """A predictor with one window at a time.

    The first window begins after Warmup. A new window begins after each judged proposal. A subclass
    defines the plan of the windows, the coefficients of the rows, and the prediction.
    """

    name: ClassVar[str]
    """The plugin's name."""
    ops: ClassVar[WindowOps]

    _run: Run | None = attrs.field(init=False, default=None)
    _store: ParameterStore | None = attrs.field(init=False, default=None)
    _deltas: Deltas | None = attrs.field(init=False, default=None)
    _window: Window | None = attrs.field(init=False, default=None)
    _searching: SpreadSearch | None = attrs.field(init=False, default=None)
    _updates: int = attrs.field(init=False, default=0)
    _proposed: bool = attrs.field(init=False, default=False)  # proposed, not yet judged
    _poisoned: bool = attrs.field(init=False, default=False)  # logged that a sample is not finite
    _pageable: bool = attrs.field(init=False, default=False)  # logged that memory is pageable
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @abstractmethod
    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return the plan of the window that begins after `updates` updates.

        `stretch` multiplies the window's usual length.
        """

    @abstractmethod
    def coefficients(self, index: int, samples: int) -> Sequence[float]:
        """Return the coefficient of sample `index`, counted from 0, in each row."""

    @abstractmethod
    def predict(self, window: Window, horizon: int, scale: float) -> Gains | None:
        """Return the prediction of a full window, at most `horizon` updates ahead, or None.

        `scale` is the setting `scale` times `Pace.scale`. For a search it is the setting alone.
        """

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore, probe: Probe) -> None:
        """Register a callback that samples each update."""
        self._run, self._store = run, store
        if self.config.search_batches:
            self._searching = SpreadSearch(self.config.search_batches, store, probe)
        if self.config.apply_every > 1:
            self._deltas = Deltas(self._storage, self.config.state)
        self._leave = store.on_updates(self._follow)
        run.stash.on_set(ROLLBACK, self._forget)

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the callback."""
        if self._leave is not None:
            self._leave()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Open the first window after Warmup, and a new window after each judged proposal."""
        if phase is PREDICT:
            return
        if self._proposed or (self._window is None and phase is not WARMUP):
            self._open()

    @property
    def _storage(self) -> Storage:
        assert self._run is not None, "the run has not started"
        return storage_for(self.config.tier, self._run.device, self.ops, self._note_pageable)

    def _note_pageable(self, reason: str) -> None:
        self._pageable = self._pageable or self._warn("pageable", reason=reason)

    def _warn(self, event: str, **values: Any) -> bool:
        if self._run is not None:
            name = f"{self.name}.{event}"
            self._run.log.warning(name, **values)
        return True

    @property
    def _pace(self) -> Pace:
        pace = self._run.stash.get(PACE) if self._run else None
        return pace or Pace()

    def _sampled(self) -> list[Span]:
        spans = self._store.spans() if self._store else []
        return [span for span in spans if span.trainable and span.dtype.is_floating_point]

    def _open(self) -> None:
        config, spans, before = self.config, self._sampled(), self._window
        if self._deltas is not None:
            if self._proposed and self._deltas.count >= config.apply_every:
                self._deltas.clear()
            for span in spans:
                self._deltas.reserve(span.name, span.shape)
        self._window, self._proposed = None, False
        plan = self.plan(self._updates, self._pace.window)
        self._window = Window.open(
            plan,
            self.coefficients,
            spans,
            self._storage,
            config.state,
            began=self._updates,
            before=before,
        )
        if self._searching is not None:
            self._searching.open(self._window, self._storage, config.state)

    def _forget(self) -> None:
        """Discard the samples and the unapplied deltas: a rollback has undone their updates."""
        self._proposed = False
        if self._deltas is not None:
            self._deltas.clear()
        if self._window is not None:
            self._open()

    def _follow(self, spans: list[Span], weights: list[Any], deltas: list[Any]) -> None:
        window = self._window
        if window is not None and deltas[0] is None and window.samples_next:
            names = [span.name for span in spans]
            window.add_all(names, weights)
            if self._searching is not None:
                self._searching.add(names, weights)

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count updates, and run the search before each update after a full window."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            self._search(arguments["batch"])
            applied = False
            try:
                trained = following(**arguments)
                applied = trained.outcome is Outcome.APPLIED
            finally:
                self._count(applied=applied)
            return trained

        return counted

    def _search(self, batch: Any) -> None:
        window, searching = self._window, self._searching
        if window is None or searching is None or not (window.full and searching.pending):
            return
        assert self._run is not None, "the run has started"
        longest = self._run.config.phases.predict.max_horizon
        gains = self.predict(window, longest, self.config.scale)
        searching.measure(window, None if gains is None else gains.values, batch)

    def _count(self, *, applied: bool) -> None:
        window = self._window
        self._updates += applied
        if window is None:
            return
        if not applied:
            if window.touched:  # the update failed after some weights were sampled
                self._open()
            return
        sampled = window.touched
        if self._searching is not None:
            self._searching.advance()
        if not window.advance():
            self._poisoned = self._poisoned or self._warn("poisoned", update=self._updates)
            self._open()
        elif sampled:
            self._poisoned = False

    @hookimpl
    def propose_update(self, horizon: int) -> Update | None:
        """If the window is full, propose a jump predicted from it. Each window is used once."""
        found = self._proposal(horizon)
        return declined(self._run, self.name, found) if isinstance(found, str) else found

    def _proposal(self, horizon: int) -> Update | str:
        window, deltas, pace = self._window, self._deltas, self._pace
        if window is None or not window.full:
            return "its window of updates is not full"
        if self._searching is not None and self._searching.pending:
            return "its search is not finished"
        again, self._proposed = self._proposed, True  # `again`: the previous step failed
        # If a search has measured the best length of the jump, the pace may only shorten the jump.
        pace_scale = pace.scale if self._searching is None else min(1.0, pace.scale)
        scale = self.config.scale * pace_scale
        gains = self._predicted(window, horizon, scale) if scale else "the pace of jumps is 0"
        if deltas is None:
            if isinstance(gains, str):
                return gains
            return self._update(gains.horizon, lambda name: window.combined(name, gains.values))
        if not isinstance(gains, str) and not again:
            deltas.take(window, gains.values, gains.horizon, self._updates)
        if deltas.count < self.config.apply_every or not scale:
            return "too few of its changes are collected" if scale else "the pace of jumps is 0"
        share, reached = min(1.0, horizon / deltas.horizon), min(horizon, deltas.horizon)
        return self._update(reached, lambda name: deltas.total(name, share))

    def _predicted(self, window: Window, horizon: int, scale: float) -> Gains | str:
        gains = self.predict(window, horizon, scale)
        if gains is None or self._searching is None:
            return gains or "its window gives no prediction"
        factor = min(self._searching.factor, horizon / gains.horizon)
        if factor <= 0.0:
            return "its search found no gain"
        values = tuple(factor * value for value in gains.values)
        return Gains(values, max(1, round(factor * gains.horizon)))

    def _update(self, horizon: int, delta_of: Callable[[str], torch.Tensor | None]) -> Update:
        seed = self._updates if self.config.rounding == "stochastic" else None

        def add(weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
            self.ops.add_to(weight, delta, scale, seed)

        return Update(horizon, lambda span: delta_of(span.name), add)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """After Warmup, add the bytes of the window and of the copied weights for a search."""
        tier: Tier = "device" if self.config.tier == "device" else "host"
        held = 0 if phase is WARMUP else self._bytes()
        ledger = ledger.add(self.name, "predictor", tier, held)
        if self._searching is None or phase in {WARMUP, PREDICT}:
            return ledger
        assert self._store is not None, "a search has a store"
        copied = sum(span.bytes for span in self._store.spans() if span.trainable)
        return ledger.add(self.name, "snapshot", "host", copied, ("predict",))

    def _bytes(self) -> int:
        state, waiting = self.config.state, self.config.apply_every > 1
        width = len(self.coefficients(0, self.plan(self._updates, 1.0).samples))
        shapes = [span.shape for span in self._sampled()]
        held = sum(window_bytes(shape, state, width) for shape in shapes)
        if self.config.search_batches:
            held += searching_bytes(shapes, state)
        return held + waiting * sum(held_bytes(shape, state) for shape in shapes)

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the window's length, its updates so far, and the number of unapplied deltas."""
        window = self._window
        if window is None:
            return {}
        seen = float(min(window.position, window.length))
        waiting = {} if self._deltas is None else {"waiting": float(self._deltas.count)}
        return {"window": float(window.length), "seen": seen, **waiting}

    def state_dict(self) -> dict[str, Any]:
        """Return the window, the unapplied deltas, and the count of updates."""
        return {
            "updates": self._updates,
            "proposed": self._proposed,
            "window": None if self._window is None else self._window.state_dict(),
            "deltas": None if self._deltas is None else self._deltas.state_dict(),
            "searching": None if self._searching is None else self._searching.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._updates, self._proposed = counter(state, "updates"), state["proposed"]
        saved, self._window = state["window"], None
        if saved is not None:
            self._window = Window.load(saved, self.coefficients, self._storage)
        if self._deltas is not None and state["deltas"] is not None:
            self._deltas.load_state_dict(state["deltas"])
        if self._searching is not None and state["searching"] is not None:
            self._searching.load_state_dict(state["searching"], self._storage)
