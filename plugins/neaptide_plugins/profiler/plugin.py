"""Samples at the notifications of each step, and writes what it saw."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING, Any

import attrs

from neaptide import Plugin, hookimpl

from .config import ProfilerConfig
from .probes import Nvml, Probe, Sample
from .statistics import Course, Running, render

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import Phase, Run

_COLUMNS = ("step", "phase", "moment", *(field.name for field in attrs.fields(Sample)))
_SPIKES_SHOWN = 5


@attrs.define(eq=False)
class Profiler(Plugin[ProfilerConfig]):
    """Looks on; holds a few numbers a phase and moment, whatever the length of the run."""

    _run: Run | None = attrs.field(init=False, default=None)
    _probe: Probe | None = attrs.field(init=False, default=None)
    _nvml: Nvml | None = attrs.field(init=False, default=None)
    _file: IO[str] | None = attrs.field(init=False, default=None)
    _resumed: bool = attrs.field(init=False, default=False)
    _course: Course = attrs.field(init=False, factory=Course)
    _moments: dict[tuple[str, str], Running] = attrs.field(init=False, factory=dict)
    _last: dict[tuple[str, str], int] = attrs.field(init=False, factory=dict)
    _spikes: list[str] = attrs.field(init=False, factory=list)
    _spike_count: int = attrs.field(init=False, default=0)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Find out what can be measured here."""
        cuda = run.device.type == "cuda"
        self._nvml = Nvml(run.device.index or 0) if self.config.nvml and cuda else None
        self._run, self._probe = run, Probe(run.device, self._nvml)

    @hookimpl
    def after_forward(self, step: int, phase: Phase) -> None:
        """Sample while the activations are there."""
        self._take(step + 1, phase, "forward")

    @hookimpl
    def after_backward(self, step: int, phase: Phase) -> None:
        """Sample while the gradients are there."""
        self._take(step + 1, phase, "backward")

    @hookimpl
    def after_step(self, step: int, phase: Phase) -> None:
        """Sample between two steps."""
        self._take(step, phase, "step")

    def _take(self, step: int, phase: Phase, moment: str) -> None:
        if step % self.config.every or self._probe is None:
            return
        sample, key = self._probe.sample(), (phase.name, moment)
        self._course.add(sample.watched)
        self._moments.setdefault(key, Running()).add(sample.watched)
        rise = sample.watched - self._last.get(key, sample.watched)
        self._last[key] = sample.watched
        if rise >= self.config.spike_mb * 1e6:
            self._note_spike(step, phase, moment, rise)
        self._write(step, phase, moment, sample)

    def _note_spike(self, step: int, phase: Phase, moment: str, rise: int) -> None:
        assert self._run is not None, "sampled before the run started"
        self._spike_count += 1
        if len(self._spikes) < _SPIKES_SHOWN:
            self._spikes.append(
                f"spike: +{rise / 1e6:.0f} MB at step {step}, {phase.name} {moment}"
            )
        self._run.log.info("profiler.spike", step=step, phase=phase.name, moment=moment, bytes=rise)

    def _write(self, step: int, phase: Phase, moment: str, sample: Sample) -> None:
        directory = self._directory()
        if directory is None or not self.config.csv:
            return
        new = self._file is None
        if self._file is None:
            mode = "a" if self._resumed else "w"
            self._file = (directory / "memory.csv").open(
                mode, newline="", buffering=1, encoding="utf-8"
            )
        writer = csv.writer(self._file, lineterminator="\n")
        if new and not self._resumed:
            writer.writerow(_COLUMNS)
        writer.writerow((step, phase.name, moment, *attrs.astuple(sample)))

    def _directory(self) -> Path | None:
        return self._run.plugin_directory("profiler") if self._run is not None else None

    @hookimpl
    def on_run_end(self) -> None:
        """Close the files, and leave the table beside them."""
        if self._file is not None:
            self._file.close()
        directory, table = self._directory(), self.report()
        if directory is not None and table is not None:
            (directory / "table.txt").write_text(f"{table}\n", encoding="utf-8")
        if self._nvml is not None:
            self._nvml.close()

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the highest sample so far and the number of spikes."""
        return {"peak_bytes": float(self._course.peak), "spikes": float(self._spike_count)}

    def report(self) -> str | None:
        """Return the table, once there was a sample."""
        if self._probe is None or self._course.initial is None:
            return None
        assert self._run is not None, "a probe has a run"
        cuda = self._run.device.type == "cuda"
        notes = list(self._spikes)
        if self._spike_count > len(notes):
            notes.append(f"and {self._spike_count - len(notes)} more spikes in events.jsonl")
        if self._nvml is not None and self._nvml.problem is not None:
            notes.append(f"NVML: not available ({self._nvml.problem})")
        return render(
            self._course,
            self._moments,
            capacity=self._probe.capacity(),
            measured="torch's allocator on the GPU" if cuda else "no accelerator: RSS only",
            notes=notes,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the same file; statistics are of this process alone."""
        del state
        self._resumed = True
