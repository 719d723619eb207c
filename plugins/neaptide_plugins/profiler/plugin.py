"""Samples at the notifications of each step, and writes what it saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Outcome, Plugin, hookimpl

from .config import ProfilerConfig
from .nvml import Nvml
from .probes import Probe, Sample, uuid_of
from .rows import Rows
from .statistics import Account, render

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import Phase, Run, StepResult

_COLUMNS = ("step", "phase", "moment", *(field.name for field in attrs.fields(Sample)))


@attrs.define(eq=False)
class Profiler(Plugin[ProfilerConfig]):
    """Looks on. A sample belongs to the update in progress, a Predict step to the one after it."""

    _account: Account = attrs.field(init=False)
    _probe: Probe | None = attrs.field(init=False, default=None)
    _nvml: Nvml | None = attrs.field(init=False, default=None)
    _rows: Rows | None = attrs.field(init=False, default=None)
    _directory: Path | None = attrs.field(init=False, default=None)
    _log: Any = attrs.field(init=False, default=None)

    @_account.default
    def _empty(self) -> Account:
        return Account(self.config.spike_mb * 1e6)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Find out what can be measured here, and what is held before the first step."""
        if self.config.nvml and run.device.type == "cuda":
            self._nvml = Nvml(uuid_of(run.device))
        self._probe, self._log = Probe(run.device, self._nvml), run.log
        self._directory = run.plugin_directory("profiler")
        if self._directory is not None and self.config.csv:
            self._rows = Rows(self._directory / "memory.csv", _COLUMNS)
        self._account.start(self._probe.sample().tiers())

    @hookimpl
    def after_forward(self, step: int, phase: Phase) -> None:
        """Sample while the activations are there."""
        self._take(step + 1, phase, "forward")

    @hookimpl
    def after_backward(self, step: int, phase: Phase) -> None:
        """Sample while the gradients are there."""
        self._take(step + 1, phase, "backward")

    @hookimpl
    def after_step(self, step: int, phase: Phase, result: StepResult) -> None:
        """Sample between two steps."""
        self._take(step + (result.outcome is Outcome.DEFERRED), phase, "step")

    @hookimpl
    def on_phase_exit(self, phase: Phase, step: int) -> None:
        """Sample at the end of a Predict step, which has no other moment."""
        if phase.applies_prediction:
            self._take(step + 1, phase, "step")

    def _take(self, step: int, phase: Phase, moment: str) -> None:
        if (step - 1) % self.config.every or self._probe is None:
            return
        sample = self._probe.sample()
        for spike in self._account.add(step, phase.name, moment, sample.tiers()):
            self._log.info(
                "profiler.spike",
                step=step,
                phase=phase.name,
                moment=moment,
                tier=spike.tier,
                bytes=spike.rise,
            )
        if self._rows is not None:
            self._rows.append(step, phase.name, moment, *attrs.astuple(sample))

    @hookimpl
    def on_run_end(self) -> None:
        """Close the files, and leave the table beside them."""
        if self._rows is not None:
            self._rows.close()
        if self._nvml is not None:
            self._nvml.close()
        table = self.report()
        if self._directory is not None and table is not None:
            (self._directory / "table.txt").write_text(f"{table}\n", encoding="utf-8")

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the highest bytes by tier so far, and the number of spikes."""
        peaks = {f"{tier}_peak": float(c.peak) for tier, c in self._account.courses.items()}
        return {**peaks, "spikes": float(self._account.spike_count)}

    def report(self) -> str | None:
        """Return the table, once the run has started."""
        if self._probe is None:
            return None
        cuda = "device" in self._account.courses
        notes = ["torch's allocator and RSS" if cuda else "no accelerator: RSS only"]
        if self._nvml is not None and self._nvml.problem is not None:
            notes.append(f"NVML: not available ({self._nvml.problem})")
        return render(self._account, self._probe.capacities(), notes)
