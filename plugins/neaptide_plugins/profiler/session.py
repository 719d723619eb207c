"""One profiled run: its samples and its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.accelerator import is_cuda
from neaptide_toolkit.machine.devices import lacks

from . import plot
from .nvml import Nvml
from .probes import ByteSample, Probe, uuid_of
from .rows import Rows
from .snapshot import AllocationHistory, Snapshots
from .statistics import Account
from .tables import phases_csv, render, tiers_csv
from .trace import StepTrace

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide.io.folder import Folder

    from .config import ProfilerConfig
    from .statistics import Spike
    from .trace import Listen


_MEMORY = "memory.csv"


class ProfilingSession:
    """Takes the samples of one run, and writes its files.

    Args:
        config: the plugin's settings.
        device: the run's device.
        folder: folder of the files; None writes no files.
        log: a structlog logger.
        listen: see `StepTrace`.
        model: the model; a snapshot names its parameters, buffers and gradients by category.
        optimizer: the optimizer; a snapshot names its state by category.
        host_bytes: see `Probe`.
    """

    def __init__(
        self,
        config: ProfilerConfig,
        device: torch.device,
        folder: Folder | None,
        log: Any,
        listen: Listen,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        host_bytes: int | None,
    ) -> None:
        self._config = config
        self._device = device
        self._folder = folder
        self._log = log
        self._nvml = Nvml(uuid_of(device)) if config.nvml and is_cuda(device) else None
        self._probe = Probe(device, self._nvml, host_bytes)
        self._capacities = self._probe.capacities()
        self._rows: Rows | None = None
        self._snapshots: Snapshots | None = None
        self._trace: StepTrace | None = None
        self._history = AllocationHistory()
        if folder is not None:
            columns = ("step", "phase", "moment", *ByteSample._fields)
            self._rows = Rows(folder, _MEMORY, columns) if config.csv else None
            limit = config.max_snapshots
            self._snapshots = Snapshots(folder, device, limit, model, optimizer)
            if config.trace:
                window = range(config.trace[0], config.trace[1] + 1)
                traced = device if config.trace_ops else None
                self._trace = StepTrace(window, folder, listen, traced, self._warn)
        elif config.plot or config.trace or config.snapshot_at or config.snapshot_on_spike:
            self._warn("there is no run directory to write to; set run.dir")
        self._unsettled: list[tuple[int, str, str, ByteSample]] = []
        self.account = Account(config.spike_mb * 1e6)

    def start(self) -> None:
        """Start recording, and sample the memory before the first step.

        `close` ends the recording.
        """
        has_history = is_cuda(self._device) and self._snapshots is not None
        if has_history and _records_history(self._config):
            self._history.start()
        self.account.start(self._probe.sample().tiers())

    def sample(self, step: int, phase: str, moment: str) -> None:
        """Sample at the moment `moment` of update `step`, if `every` selects this update."""
        if (step - 1) % self._config.every:
            return
        self._unsettled.append((step, phase, moment, self._probe.sample()))
        # Code that last ran one step ago is no longer in the CPU's caches, and so runs ten times
        # slower. Therefore the samples of a step are processed together, unless a trace or a
        # snapshot needs each sample at once.
        if moment == "step" or self._trace is not None or self._config.snapshot_on_spike:
            self._settle()

    def _settle(self) -> None:
        """Process the samples since the last call, and write their rows."""
        samples, self._unsettled = self._unsettled, []
        for step, phase, moment, sample in samples:
            tiers = sample.tiers()
            spikes = self.account.add(step, phase, moment, tiers)
            if self._rows is not None:
                self._rows.append(step, phase, moment, *sample)
            if self._trace is not None:
                self._trace.memory(tiers)
            if spikes:
                self._report_spikes(spikes)

    def _report_spikes(self, spikes: list[Spike]) -> None:
        for spike in spikes:
            where = {"step": spike.step, "phase": spike.phase, "moment": spike.moment}
            self._log.info("profiler.spike", **where, tier=spike.tier, bytes=spike.rise)
        if self._config.snapshot_on_spike:
            first = spikes[0]
            self._snapshot(first.step, first.phase, first.moment, str(first))

    def updated(self, step: int, phase: str) -> None:
        """Write a snapshot if `snapshot_at` contains update `step`."""
        if step in self._config.snapshot_at:
            self._snapshot(step, phase, "step", "snapshot_at")

    def between_steps(self, step: int, phase: str) -> None:
        """Write a requested snapshot, and start or end the trace before update `step + 1`."""
        if self._snapshots is not None and self._snapshots.requested():
            self._snapshot(step, phase, "step", "request")
        if self._trace is not None:
            self._trace.next_update(step + 1)

    def phase(self, name: str | None, step: int) -> None:
        """Record the phase that begins after update `step`. None ends the current phase."""
        if self._trace is not None:
            self._trace.next_update(step + 1)
            self._trace.phase(name)

    def flush(self) -> None:
        """Pass all rows to the operating system."""
        self._settle()
        if self._rows is not None:
            self._rows.flush()

    def abandon_trace(self) -> None:
        """Stop tracing and write no trace."""
        if self._trace is not None:
            self._trace.abandon()

    def close(self) -> None:
        """Stop all recording, then write the tables and the plot."""
        if self._trace is not None:
            self._trace.finish()
        self._history.stop()
        self._probe.close()
        if self._nvml is not None:
            self._nvml.close()
        self._settle()
        if self._rows is not None:
            self._rows.close()
        if self._folder is not None and not self._keeps_older(self._folder):
            self._write_results(self._folder)

    def _keeps_older(self, folder: Folder) -> bool:
        """Return whether to keep the old tables, because the resumed run has no new samples."""
        return not self.account.moments and folder.stat("table.txt") is not None

    def _write_results(self, folder: Folder) -> None:
        for name, text in (
            ("tiers.csv", tiers_csv(self.account, self._capacities)),
            ("phases.csv", phases_csv(self.account)),
            ("table.txt", f"{self.report()}\n"),
        ):
            folder.replace(name, text.encode())
        if self._config.plot and folder.stat(_MEMORY) is not None:
            with folder.writing("memory.png") as file:
                plot.draw(folder.read(_MEMORY).decode(), file)

    def metrics(self) -> dict[str, float]:
        """Return the peak bytes by tier, the number of spikes and the GPU's utilization."""
        values = {f"{tier}_peak": float(c.peak) for tier, c in self.account.courses.items()}
        values["spikes"] = float(self.account.spike_count)
        if self._nvml is not None and self._nvml.utilization.count:
            values["gpu_utilization"] = self._nvml.utilization.mean
        return values

    def report(self) -> str:
        """Return this run's table, or the table on disk if this run has no samples."""
        if self._folder is not None and self._keeps_older(self._folder):
            return self._folder.read("table.txt").decode("utf-8", "replace").rstrip("\n")
        reason = lacks(self._device, "allocator statistics")
        notes = ["torch's allocator and RSS" if reason is None else f"{reason}: RSS only"]
        if self._nvml is not None and self._nvml.problem is not None:
            notes.append(f"NVML: not available ({self._nvml.problem})")
        if self._nvml is not None and self._nvml.utilization.count:
            used = self._nvml.utilization
            notes.append(f"GPU utilization: mean {used.mean:.0f} %, max {used.most:.0f} % (NVML)")
        written = [f"snapshot: {name}" for name in self._snapshots_written()]
        if self._trace is not None and self._trace.written is not None:
            written.append(f"trace: {self._trace.written} (open in ui.perfetto.dev)")
        return render(self.account, self._capacities, notes, written)

    def _snapshots_written(self) -> list[str]:
        return self._snapshots.written if self._snapshots is not None else []

    def _snapshot(self, step: int, phase: str, moment: str, reason: str) -> None:
        if self._snapshots is None:
            return
        rss = self._probe.sample().rss_bytes
        try:
            name = self._snapshots.take(step, phase, moment, reason, rss)
        except Exception as error:  # noqa: BLE001 - sampling goes on without the snapshot
            self._warn(f"the snapshot of step {step} could not be written: {error!r}")
            return
        if name is not None:
            self._log.info("profiler.snapshot", step=step, reason=reason, file=name)
        else:
            self._warn(f"no snapshot of step {step} ({reason}): max_snapshots is reached")

    def _warn(self, problem: str) -> None:
        self._log.warning("profiler.problem", problem=problem)


def _records_history(config: ProfilerConfig) -> bool:
    return config.snapshot_history or config.snapshot_on_spike or bool(config.snapshot_at)
