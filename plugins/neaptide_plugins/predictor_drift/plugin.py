"""Feeds the window from the updates, and proposes its drift when the schedule asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import PREDICT, WARMUP, Outcome, Plugin, Update, hookimpl
from neaptide_kernels.apply_delta import apply_delta

from .config import PredictorDriftConfig
from .window import DriftWindow, window_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Ledger, ParameterStore, Phase, Run, Span


@attrs.define(eq=False)
class PredictorDrift(Plugin[PredictorDriftConfig]):
    """One window at a time: it begins after Warmup and anew after every proposal."""

    _window: DriftWindow | None = attrs.field(init=False, default=None)
    _updates: int = attrs.field(init=False, default=0)
    _trainable_parameters: int = attrs.field(init=False, default=0)
    _proposed: bool = attrs.field(init=False, default=False)
    _device: torch.device = attrs.field(init=False, factory=lambda: torch.device("cpu"))
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Ride along with the updates."""
        self._device = run.device if self.config.tier == "device" else torch.device("cpu")
        self._leave = store.ride(self._follow)
        self._trainable_parameters = sum(
            torch.Size(span.shape).numel() for span in store.spans() if span.trainable
        )

    @hookimpl
    def on_run_end(self) -> None:
        """Get off."""
        if self._leave is not None:
            self._leave()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Open the first window when Warmup is over."""
        if phase is not WARMUP and self._window is None:
            self._open()

    @hookimpl
    def on_phase_exit(self, phase: Phase) -> None:
        """Open a new window once a proposal was judged, whatever became of it."""
        if phase is PREDICT and self._proposed:
            self._proposed = False
            self._open()

    def _open(self) -> None:
        config = self.config
        half = window_at(
            self._updates,
            config.window_fraction,
            config.min_window,
            config.max_window,
            config.sample_every,
        )
        self._window = DriftWindow(half, config.sample_every, self._device)

    def _follow(self, span: Span, weight: torch.Tensor, delta: torch.Tensor | None) -> None:
        if self._window is not None and delta is None and self._window.samples_next:
            self._window.add(span.name, weight)

    @hookimpl
    def around_train_step(self) -> Callable[..., Any]:
        """Count the updates that were made."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            trained = following(**arguments)
            if trained.outcome is Outcome.APPLIED:
                self._updates += 1
                if self._window is not None:
                    self._window.advance()
            return trained

        return counted

    @hookimpl
    def propose_update(self, horizon: int) -> Update | None:
        """Propose a share of the drift, once the window is full."""
        window = self._window
        if window is None or not window.full:
            return None
        self._proposed = True
        scale, reached = window.reach(self.config.scale, horizon)

        def delta(span: Span) -> torch.Tensor | None:
            return window.sums[span.name] * scale if span.name in window.sums else None

        return Update(reached, delta, self._add)

    def _add(self, weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
        factor = torch.tensor(scale, device=weight.device)
        apply_delta([weight], [delta], factor, self.config.rounding == "stochastic", self._updates)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """One float32 accumulator over the trainable weights, once Warmup is over."""
        held = 0 if phase is WARMUP else 4 * self._trainable_parameters
        return ledger.add("predictor-drift", "predictor", self.config.tier, held)

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return how long the window is and how much of it is in."""
        window = self._window
        if window is None:
            return {}
        return {"window": 2.0 * window.half, "seen": float(min(window.position, 2 * window.half))}

    def state_dict(self) -> dict[str, Any]:
        """Return the window and the count of updates."""
        window = self._window
        return {
            "updates": self._updates,
            "window": None
            if window is None
            else {"half": window.half, "position": window.position, "sums": dict(window.sums)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._updates = state["updates"]
        self._window = None
        saved = state["window"]
        if saved is not None:
            self._open()
            assert self._window is not None, "just opened"
            self._window.half = saved["half"]
            self._window.position = saved["position"]
            self._window.sums = {
                name: total.to(self._device) for name, total in saved["sums"].items()
            }
