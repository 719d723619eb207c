"""Connects a `ProfilingSession` to the hooks of a run."""

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
    """An observer that samples memory.

    A sample has the number of the current update. In Predict it has the number of the next update.
    """

    _session: ProfilingSession | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError for a plot that cannot be made."""
        problem = plot.problem(has_rows=self.config.csv) if self.config.plot else None
        if problem is not None:
            msg = f"{problem} @ plugins.profiler.plot"
            raise ConfigError(msg)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Start the session. It samples the memory before the first step."""
        self._session = ProfilingSession(
            self.config,
            run.device,
            run.plugin_folder("profiler"),
            run.log,
            run.timeline.listen,
            model,
            store.optimizer,
            machine.memory().limit,
        )
        self._session.start()

    @hookimpl
    def on_phase_enter(self, phase: Phase, step: int) -> None:
        """Record the beginning of a phase."""
        if self._session is not None:
            self._session.phase(phase.name, step)

    @hookimpl
    def on_phase_exit(self, phase: Phase, step: int) -> None:
        """End the phase.

        At the end of a Predict step, also take a sample, because no other hook runs at this time.
        """
        if phase.applies_prediction:
            self._sample(step + 1, phase, "step")
        if self._session is not None:
            self._session.phase(None, step)

    @hookimpl
    def after_forward(self, step: int, phase: Phase) -> None:
        """Sample while the activations are in memory."""
        self._sample(step + 1, phase, "forward")

    @hookimpl
    def after_backward(self, step: int, phase: Phase) -> None:
        """Sample while the gradients are in memory."""
        self._sample(step + 1, phase, "backward")

    @hookimpl
    def after_step(self, step: int, phase: Phase, result: StepResult) -> None:
        """Sample between two steps. If due, write a snapshot, and start or end the trace."""
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
            self._session.abandon_trace()  # the plugin is removed and cannot end the trace later
            raise

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the peak bytes by tier, the number of spikes and the GPU's utilization."""
        return self._session.metrics() if self._session is not None else {}

    def state_dict(self) -> dict[str, Any]:
        """Write all rows to disk, so that a resumed run finds them. Return an empty state."""
        if self._session is not None:
            self._session.flush()
        return {}

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Report whether NVML works, and the GPUs that it finds."""
        return diagnosis.findings()

    def report(self) -> str | None:
        """Return the table; None before the run has started."""
        return self._session.report() if self._session is not None else None

    @hookimpl
    def on_run_end(self) -> None:
        """Close the files and write the tables."""
        if self._session is not None:
            self._session.close()
