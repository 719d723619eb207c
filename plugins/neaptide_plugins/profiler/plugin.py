"""Passes the moments of each step to a session that samples, and starts and ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Outcome, Plugin, hookimpl
from neaptide_toolkit.machine import facts as machine

from . import diagnosis, plot
from .config import ProfilerConfig
from .session import ProfilingSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from neaptide import Finding, ParameterStore, Phase, Run, StepResult


@attrs.define(eq=False)
class Profiler(Plugin[ProfilerConfig]):
    """Looks on. A sample belongs to the update in progress, a Predict step to the one after it."""

    _session: ProfilingSession | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Refuse a plot nobody can draw, before anything is built."""
        problem = plot.problem(has_rows=self.config.csv) if self.config.plot else None
        if problem is not None:
            msg = f"{problem} @ plugins.profiler.plot"
            raise ConfigError(msg)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Find out what can be measured here, and what is held before the first step."""
        directory = run.plugin_directory("profiler")
        self._session = ProfilingSession(
            self.config,
            run.device,
            directory,
            run.log,
            run.timeline.listen,
            model,
            store.optimizer,
            machine.memory().limit,
        )
        self._session.start()

    @hookimpl
    def on_phase_enter(self, phase: Phase, step: int) -> None:
        """Note where the phase begins."""
        if self._session is not None:
            self._session.phase(phase.name, step)

    @hookimpl
    def on_phase_exit(self, phase: Phase, step: int) -> None:
        """Sample at the end of a Predict step, which has no other moment."""
        if phase.applies_prediction:
            self._sample(step + 1, phase, "step")
        if self._session is not None:
            self._session.phase(None, step)

    @hookimpl
    def after_forward(self, step: int, phase: Phase) -> None:
        """Sample while the activations are there."""
        self._sample(step + 1, phase, "forward")

    @hookimpl
    def after_backward(self, step: int, phase: Phase) -> None:
        """Sample while the gradients are there."""
        self._sample(step + 1, phase, "backward")

    @hookimpl
    def after_step(self, step: int, phase: Phase, result: StepResult) -> None:
        """Sample between two steps, and do what was asked for after this one."""
        deferred = result.outcome is Outcome.DEFERRED
        self._sample(step + deferred, phase, "step")
        if self._session is not None:
            if not deferred:
                self._session.updated(step, phase.name)
            self._session.between_steps(step, phase.name)

    def _sample(self, step: int, phase: Phase, moment: str) -> None:
        if self._session is None:
            return
        try:
            self._session.sample(step, phase.name, moment)
        except BaseException:
            self._session.abandon_trace()  # nobody would tell it where its window ends
            raise

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the highest bytes by tier so far, and the number of spikes."""
        return self._session.metrics() if self._session is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a run resumed from here finds the rows before it on disk."""
        if self._session is not None:
            self._session.flush()
        return {}

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Say whether NVML answers, and what it sees."""
        return diagnosis.findings()

    def report(self) -> str | None:
        """Return the table, once the run has started."""
        return self._session.report() if self._session is not None else None

    @hookimpl
    def on_run_end(self) -> None:
        """Close the files, and leave the tables beside them."""
        if self._session is not None:
            self._session.close()
