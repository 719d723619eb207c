"""The plugin: records accepted jumps, judges them later, and publishes the pace of jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import DECLINED, PACE, PREDICT, ROLLBACK, WARMUP, Outcome, Pace, Plugin, hookimpl
from neaptide_toolkit.predictors.learning_rate import rate_factor

from .config import DelayedVerdictConfig
from .gain import JUMP_GAIN, JumpGain
from .trial import TrialWeights, losses_of
from .verdicts import UNFINISHED, Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import (
        AroundForward,
        AroundPredict,
        AroundTrainStep,
        Ledger,
        ParameterStore,
        Phase,
        Run,
        Span,
    )
    from neaptide.api.steps import Probe


@attrs.define(eq=False)
class DelayedVerdict(Plugin[DelayedVerdictConfig]):
    """Judges one jump at a time. A jump that is accepted during this time is not judged."""

    _run: Run = attrs.field(init=False)
    _store: ParameterStore = attrs.field(init=False)
    _probe: Probe = attrs.field(init=False)
    _kept: TrialWeights = attrs.field(init=False)
    _verdicts: Verdicts = attrs.field(init=False)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)
    _recording: bool = attrs.field(init=False, default=False)
    _counting: bool = attrs.field(init=False, default=False)
    _step: int = attrs.field(init=False, default=0)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore, probe: Probe) -> None:
        """Register a callback for weight updates, and publish the first pace."""
        config = self.config
        device = run.device if config.tier == "device" else torch.device("cpu")
        self._run, self._store, self._probe = run, store, probe
        self._kept = TrialWeights(device, getattr(torch, config.state))
        self._verdicts = Verdicts(config, rate_factor(run.stash))
        self._leave = store.on_updates(self._follow)
        run.stash.on_set(ROLLBACK, self._forget)
        self._publish()
        run.log.info("delayed-verdict.started", after=config.after, average=config.average)

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the callback for weight updates."""
        if self._leave is not None:
            self._leave()

    @hookimpl
    def on_phase_enter(self, phase: Phase, step: int) -> None:
        """When Warmup ends, allocate tensors for a jump and for the mean of the later weights."""
        self._step = step
        if phase is not WARMUP:
            self._kept.reserve(span for span in self._store.spans() if span.trainable)

    @hookimpl
    def after_step(self, step: int) -> None:
        """Store the step's number."""
        self._step = step

    def _publish(self) -> None:
        self._run.stash.set(PACE, Pace(*self._verdicts.pace(self._step)))
        judged = self._verdicts.judged
        self._run.stash.set(JUMP_GAIN, None if judged is None else JumpGain(**judged))

    def _forget(self) -> None:
        """End the trial, and forget the verdicts: a rollback has undone their updates."""
        before = self._verdicts
        self._verdicts = Verdicts(
            self.config, before.factor, counts=before.counts, account=before.account
        )
        self._kept.forget()
        self._publish()

    def _follow(
        self, spans: list[Span], weights: list[torch.Tensor], deltas: list[torch.Tensor | None]
    ) -> None:
        if deltas[0] is None:
            if self._verdicts.sample:
                now = {span.name: weight for span, weight in zip(spans, weights, strict=True)}
                self._kept.average(now, self._verdicts.sample)
            return
        for span, delta in zip(spans, deltas, strict=True):
            if delta is not None and self._recording:
                self._kept.record(span.name, delta)

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Publish the pace. Begin the trial of an accepted jump if no other jump is on trial."""

        def recorded(following: Callable[..., Any], **arguments: Any) -> Any:
            self._publish()
            refusal = self._verdicts.refusal(self._step)
            if refusal:
                self._run.stash.set(DECLINED, f"delayed-verdict: {refusal}")
            self._recording = self._verdicts.judges(self._step)
            if self._recording:
                self._kept.forget()
            self._counting = True
            try:
                jump = following(**arguments)
                if self._recording and jump is not None and jump.accepted:
                    self._verdicts.begin(self._step, jump.horizon)
            finally:
                self._recording = self._counting = False
            return jump

        return recorded

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Count the forwards of Predict steps and of verdicts."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            self._verdicts.account.forwards += self._counting
            return following(**arguments)

        return counted

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count applied updates. If a verdict is due, judge the jump on the batch, then train."""

        def judged(following: Callable[..., Any], *, batch: Any, **arguments: Any) -> Any:
            if self._verdicts.due:
                self._judge(batch)
            trained = following(batch=batch, **arguments)
            if trained.outcome is Outcome.APPLIED:
                self._verdicts.updated()
            return trained

        return judged

    def _judge(self, batch: Any) -> None:
        contrast = self.config.contrast
        self._counting = True
        try:
            losses = losses_of(self._store, self._kept, lambda: self._probe(batch), contrast)
        finally:
            self._counting = False
        reached = self._verdicts.take(losses, self._step)
        if reached is not None:
            verdict, details = reached
            self._publish()
            event = f"verdict.{verdict}"
            log = self._run.log.warning if verdict == UNFINISHED else self._run.log.info
            log(event, **details)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the jump and the mean weights after Warmup, and a snapshot during a verdict."""
        if phase is WARMUP:
            return ledger
        spans = [span for span in self._store.spans() if span.trainable]
        elements = sum(torch.Size(span.shape).numel() for span in spans)
        name, tier = "delayed-verdict", self.config.tier
        ledger = ledger.add(name, "verdict", tier, elements * (2 + self._kept.dtype.itemsize))
        copied = 0 if phase is PREDICT else sum(span.bytes for span in spans)
        return ledger.add(name, "snapshot", tier, copied, ("predict",))

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the pace, the counts of verdicts, and the newest gain with its standard error."""
        return self._verdicts.metrics(self._step)

    def state_dict(self) -> dict[str, Any]:
        """Return the verdicts and the tensors of the jump on trial."""
        return {
            "step": self._step,
            "verdicts": self._verdicts.state_dict(),
            "kept": self._kept.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._step = state["step"]
        self._verdicts.load_state_dict(state["verdicts"])
        self._kept.load_state_dict(state["kept"])
        self._publish()
