"""Rides along after accepted jumps, judges them when their time comes, and leaves the pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import PACE, PREDICT, WARMUP, Outcome, Pace, Plugin, hookimpl
from neaptide.schedule import LearningRate

from .config import DelayedVerdictConfig
from .pacing import REGIMES, Pacing, Verdict, regime_of, verdict_of
from .trial import POINTS, Kept, Trial, extrapolated, losses_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Ledger, ParameterStore, Phase, Run, Span
    from neaptide.steps import Probe


@attrs.define(eq=False)
class DelayedVerdict(Plugin[DelayedVerdictConfig]):
    """One jump at a time; those accepted meanwhile are in its average, and not judged."""

    _run: Run = attrs.field(init=False)
    _store: ParameterStore = attrs.field(init=False)
    _probe: Probe = attrs.field(init=False)
    _kept: Kept = attrs.field(init=False)
    _factor: Callable[[int], float] = attrs.field(init=False)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)
    _trial: Trial | None = attrs.field(init=False, default=None)
    _recording: bool = attrs.field(init=False, default=False)
    _step: int = attrs.field(init=False, default=0)
    _pacings: dict[str, Pacing] = attrs.field(
        init=False, factory=lambda: dict.fromkeys(REGIMES, Pacing())
    )
    _points: list[list[float]] = attrs.field(init=False, factory=list)
    _figures: dict[str, float] = attrs.field(init=False)

    @_figures.default
    def _nothing_yet(self) -> dict[str, float]:
        return dict.fromkeys((*(each.value for each in Verdict), "unfinished"), 0.0)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore, probe: Probe) -> None:
        """Ride along with the updates."""
        config, schedule = self.config, run.config.schedule
        self._run, self._store, self._probe = run, store, probe
        self._factor = LearningRate(
            name=schedule.name, warmup_steps=schedule.warmup_steps, steps=run.config.train.steps
        ).factor
        device = run.device if config.tier == "device" else torch.device("cpu")
        self._kept = Kept(device, getattr(torch, config.state))
        self._leave = store.ride(self._follow)
        self._set_pace()
        run.log.info("delayed-verdict.started", after=config.after, average=config.average)

    @hookimpl
    def on_run_end(self) -> None:
        """Get off."""
        if self._leave is not None:
            self._leave()

    @hookimpl
    def on_phase_enter(self, phase: Phase, step: int) -> None:
        """Take the memory when Warmup is over."""
        self._step = step
        if phase is not WARMUP:
            self._kept.reserve(span for span in self._store.spans() if span.trainable)

    @hookimpl
    def after_step(self, step: int) -> None:
        """Remember how far the schedule is."""
        self._step = step

    def _set_pace(self) -> None:
        pacing = self._pacings[regime_of(self._factor(self._step))]
        self._run.stash.set(PACE, Pace(pacing.scale_at(self._step), pacing.window))

    def _follow(self, span: Span, weight: torch.Tensor, delta: torch.Tensor | None) -> None:
        if delta is not None:
            if self._recording:
                self._kept.record(span.name, delta)
        elif self._trial is not None:
            first = self.config.after - self.config.average
            if first <= self._trial.seen < self.config.after:
                self._kept.average(span.name, weight, self._trial.seen - first + 1)

    @hookimpl
    def around_predict(self) -> Callable[..., Any]:
        """Set the pace; begin a trial with an accepted jump."""

        def recorded(following: Callable[..., Any], **arguments: Any) -> Any:
            self._set_pace()
            self._recording = self._trial is None
            try:
                jump = following(**arguments)
            finally:
                recording, self._recording = self._recording, False
            if recording and jump is not None and jump.accepted:
                at = self._step + self.config.after
                regime = regime_of(self._factor(self._step))
                expected = extrapolated(self._points, at)
                self._trial = Trial(self._step + 1, jump.horizon, regime, expected)
            return jump

        return recorded

    @hookimpl
    def around_train_step(self) -> Callable[..., Any]:
        """Judge on a batch before it is trained on; count the updates that were made."""

        def judged(following: Callable[..., Any], *, batch: Any, **arguments: Any) -> Any:
            if self._trial is not None and self._trial.seen >= self.config.after:
                self._judge(self._trial, batch)
            trained = following(batch=batch, **arguments)
            if self._trial is not None and trained.outcome is Outcome.APPLIED:
                self._trial.seen += 1
            return trained

        return judged

    def _judge(self, trial: Trial, batch: Any) -> None:
        losses = losses_of(
            self._store, self._kept, lambda: self._probe(batch), self.config.contrast
        )
        if not all(map(math.isfinite, losses)):
            self._trial = None
            self._figures["unfinished"] += 1.0
            self._run.log.warning(
                "verdict.none", step=self._step + 1, jump=trial.step, losses=losses
            )
            return
        trial.take(losses)
        if len(trial.losses) == self.config.batches:
            self._trial = None
            self._conclude(trial)

    def _conclude(self, trial: Trial) -> None:
        verdict = verdict_of(trial.gain, trial.error, self.config.certainty)
        before = self._pacings[trial.regime]
        pacing = before.after(verdict, self._step, self.config)
        self._pacings[trial.regime] = pacing
        self._set_pace()
        self._points = [*self._points, [self._step, trial.loss]][-POINTS:]
        by_forecast = None if trial.expected is None else trial.expected - trial.loss
        self._figures[verdict.value] += 1.0
        self._figures |= {"gain": trial.gain, "gain_error": trial.error}
        if by_forecast is not None:
            self._figures["gain_by_forecast"] = by_forecast
        event = f"verdict.{verdict.value}"
        self._run.log.info(
            event,
            step=self._step + 1,
            jump=trial.step,
            horizon=trial.horizon,
            gain=trial.gain,
            stderr=trial.error,
            gain_by_forecast=by_forecast,
            regime=trial.regime,
            scale=pacing.scale_at(self._step),
            window=pacing.window,
        )

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """The mean and the jump once Warmup is over; a snapshot while a jump is judged."""
        spans = [span for span in self._store.spans() if span.trainable]
        elements = sum(torch.Size(span.shape).numel() for span in spans)
        held = 0 if phase is WARMUP else elements * (2 + self._kept.dtype.itemsize)
        name, tier = "delayed-verdict", self.config.tier
        ledger = ledger.add(name, "verdict", tier, held)
        if phase is WARMUP or phase is PREDICT:
            return ledger
        copied = sum(span.bytes for span in spans)
        return ledger.add(name, "snapshot", tier, copied, ("predict",))

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the pace, the verdicts so far, and the newest gain with its standard error."""
        pacing = self._pacings[regime_of(self._factor(self._step))]
        pace = {"scale": pacing.scale_at(self._step), "window": pacing.window}
        return {**pace, **self._figures}

    def state_dict(self) -> dict[str, Any]:
        """Return the pace, the jump under judgement, and what has been measured."""
        return {
            "step": self._step,
            "trial": None if self._trial is None else attrs.asdict(self._trial),
            "kept": self._kept.state_dict(),
            "pacings": {name: attrs.asdict(pacing) for name, pacing in self._pacings.items()},
            "points": [list(point) for point in self._points],
            "figures": dict(self._figures),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._step = state["step"]
        self._trial = None if state["trial"] is None else Trial(**state["trial"])
        self._kept.load_state_dict(state["kept"])
        self._pacings = {name: Pacing(**saved) for name, saved in state["pacings"].items()}
        self._points = [list(point) for point in state["points"]]
        self._figures = dict(state["figures"])
        self._set_pace()
