"""The plugin: observes each jump in the Correct phase after it, and corrects the next jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import CORRECT, PREDICT, ROLLBACK, WARMUP, ConfigError, Outcome, Plugin, hookimpl
from neaptide_toolkit.predictors.learning_rate import rate_factor
from neaptide_toolkit.predictors.run_features import run_features
from neaptide_toolkit.saved_form import counter

from .config import SPEC, ResidualCorrectionConfig
from .correcting import Correction, applied, correction_of
from .memory import ResidualMemory, key_of
from .observation import Observation
from .slots import DiskSlots, HostSlots, Slots, layout

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from neaptide import (
        AroundCorrect,
        AroundPredict,
        AroundPropose,
        Ledger,
        ParameterStore,
        Phase,
        Run,
        Span,
        Update,
    )
    from neaptide.api.history import History


@attrs.define(eq=False)
class ResidualCorrection(Plugin[ResidualCorrectionConfig]):
    """Each jump before a Correct phase leaves a residual; each later jump is corrected by them."""

    _run: Run = attrs.field(init=False)
    _store: ParameterStore = attrs.field(init=False)
    _slots: Slots | None = attrs.field(init=False, default=None)
    _memory: ResidualMemory = attrs.field(init=False)
    _observed: Observation = attrs.field(init=False, factory=Observation)
    _observe: int = attrs.field(init=False, default=0)
    """Updates in an observation."""
    _factor: Callable[[int], float] = attrs.field(init=False)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)
    _step: int = attrs.field(init=False, default=0)
    _recording: bool = attrs.field(init=False, default=False)
    _recorded: bool = attrs.field(init=False, default=False)
    _slot: int | None = attrs.field(init=False, default=None)
    """The slot that the present update fills, if it is the last of an observation."""
    _key: list[float] = attrs.field(init=False, factory=list)
    _correction: Correction | None = attrs.field(init=False, default=None)
    _corrected: int = attrs.field(init=False, default=0)
    _share: float = attrs.field(init=False, default=0.0)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Register a callback for updates; ConfigError if nothing can be observed or stored."""
        self._run, self._store, self._factor = run, store, rate_factor(run.stash)
        self._memory = ResidualMemory(self.config.entries)
        steps = run.config.phases.correct.steps
        self._observe = min(self.config.observe, steps)
        if not steps:
            msg = (
                f"{SPEC.name} observes the updates of Correct phases, and there are none (got 0); "
                "give 1 or more @ phases.correct.steps"
            )
            raise ConfigError(msg)
        if self.config.tier == "disk" and run.directory is None:
            msg = (
                "residuals in files need a run directory, and there is none; set run.dir, or "
                f'tier = "host" @ plugins.{SPEC.name}.tier'
            )
            raise ConfigError(msg)
        self._leave = store.on_updates(self._follow)
        run.stash.on_set(ROLLBACK, self._forget)

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the callback, and close the file."""
        if self._leave is not None:
            self._leave()
        if self._slots is not None:
            self._slots.close()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Allocate when Warmup ends. An observation needs a Correct phase right after the jump."""
        if phase is WARMUP:
            return
        self._reserve()
        if phase is not PREDICT and phase is not CORRECT:
            self._observed.end()

    def _spans(self) -> list[Span]:
        spans = self._store.spans()
        return [span for span in spans if span.trainable and span.dtype.is_floating_point]

    def _reserve(self) -> None:
        if self._slots is not None:
            return
        spans = self._spans()
        self._observed.reserve(spans)
        parts, size = layout(spans)
        if self.config.tier == "host":
            self._slots = HostSlots(parts, size, self.config.entries)
            return
        folder = self._run.plugin_folder(SPEC.name)
        assert folder is not None, "checked at the start"
        self._slots = DiskSlots(parts, size, folder)

    def _follow(
        self, spans: list[Span], weights: list[torch.Tensor], deltas: list[torch.Tensor | None]
    ) -> None:
        observed, slots = self._observed, self._slots
        if slots is None:
            return
        for span, weight, delta in zip(spans, weights, deltas, strict=True):
            if span.name not in slots.parts:
                continue
            if delta is not None and self._recording:
                if not self._recorded:  # only an accepted jump ends the observation of another
                    observed.end()
                    self._recorded = True
                observed.record(span.name, weight, delta)
            elif delta is None and self._slot is not None:
                residual = observed.residual(span.name, weight, self._observe)
                slots.write(self._slot, span.name, residual)

    @hookimpl
    def around_propose(self) -> AroundPropose:
        """Add the correction to the proposed update."""

        def corrected(
            following: Callable[..., Update | None],
            *,
            store: ParameterStore,
            history: History,
            **arguments: Any,
        ) -> Update | None:
            update = following(store=store, history=history, **arguments)
            if update is None:
                return None
            progress = self._step / self._run.config.train.steps
            rate = self._factor(self._step)
            self._key = key_of(run_features(history.losses, progress=progress, rate=rate))
            config, slots = self.config, self._slots
            weights = self._memory.weights(self._key, config.neighbours, config.decay)
            if slots is None or not weights:
                return update
            self._correction = correction_of(update, store, slots, weights, config.limit)
            return update if self._correction is None else applied(update, self._correction)

        return corrected

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Record an accepted jump. A refused jump changes nothing here."""

        def recorded(following: Callable[..., Any], **arguments: Any) -> Any:
            self._recording, self._recorded, self._correction = True, False, None
            try:
                jump = following(**arguments)
                if jump is not None and jump.accepted and self._recorded:
                    self._begin(jump.horizon, jump.scale, jump.norm)
            finally:
                self._recording, self._correction = False, None
            return jump

        return recorded

    def _begin(self, horizon: int, scale: float, norm: float) -> None:
        correction = self._correction
        if correction is not None:
            for name in self._observed.recorded:
                self._observed.without(name, correction.of(name).mul_(scale))
            self._corrected += 1
            self._share = correction.norm / norm if norm else 0.0
            self._run.log.info(
                "residual-correction.corrected",
                step=self._step + 1,
                residuals=len(correction.weights),
                norm=correction.norm * scale,
            )
        self._observed.begin(horizon, self._key)

    @hookimpl
    def around_correct(self) -> AroundCorrect:
        """Count the updates of an observation; store the residual in its last update."""

        def observed(following: Callable[..., Any], **arguments: Any) -> Any:
            found = self._observed
            if not found.horizon or found.seen >= self._observe:
                return following(**arguments)
            if found.seen == self._observe - 1:
                self._slot = self._memory.free()
            try:
                trained = following(**arguments)
                if trained.outcome is Outcome.APPLIED:
                    found.seen += 1
                    if self._slot is not None:
                        self._memory.add(self._slot, found.key)
                        found.end()
            finally:
                self._slot = None
            return trained

        return observed

    @hookimpl
    def after_step(self, step: int) -> None:
        """Store the step's number."""
        self._step = step

    def _forget(self) -> None:
        """Forget the residuals: a rollback has undone their updates."""
        self._memory = ResidualMemory(self.config.entries)
        self._observed.end()

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the jump, the weights after it, and the residuals, after Warmup."""
        if phase is WARMUP:
            return ledger
        spans = self._spans()
        size = layout(spans)[1]
        elements = sum(span.bytes // span.dtype.itemsize for span in spans)
        watched = sum(span.bytes for span in spans) + 2 * elements
        ledger = ledger.add(SPEC.name, "correction", "host", watched)
        return ledger.add(SPEC.name, "residuals", self.config.tier, size * self.config.entries)

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the counts of residuals and corrected jumps, and the newest correction's share."""
        return {
            "residuals": float(len(self._memory.entries)),
            "corrected": float(self._corrected),
            "share": self._share,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals, the observation, and the counts."""
        slots = self._slots
        stored = {
            str(entry.slot): slots.get(entry.slot, 0, slots.size)
            for entry in self._memory.entries
            if slots is not None
        }
        return {
            "step": self._step,
            "corrected": self._corrected,
            "share": self._share,
            "memory": self._memory.state_dict(),
            "observed": self._observed.state_dict(),
            "stored": stored,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._step, self._corrected = counter(state, "step"), counter(state, "corrected")
        self._share = state["share"]
        self._memory.load_state_dict(state["memory"])
        self._observed.load_state_dict(state["observed"])
        if state["stored"] or self._observed.jump:
            self._reserve()
        if self._slots is not None:
            for slot, packed in state["stored"].items():
                self._slots.put(int(slot), 0, packed.to("cpu"))
