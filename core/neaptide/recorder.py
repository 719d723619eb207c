"""Writes what happens into the run directory, and keeps the peaks by phase for the summary."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from .config import dumps, unstructure
from .memory import PeakMeter
from .rundir import RunDirectory, jsonable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import torch

    from .config import RunConfig
    from .manager import HookManager
    from .memory import MemorySample
    from .phases import Phase
    from .state import Pending, TrainState
    from .steps import StepResult


class Recorder:
    """The run directory's files as they fill up; without a directory it only counts."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._files = RunDirectory(Path(config.run.dir)) if config.run.dir else None
        self._meter: PeakMeter | None = None
        self._phase: Phase | None = None
        self.peaks: dict[str, MemorySample] = {}
        self.final_loss: float | None = None
        self._started = time.perf_counter()
        self._recorded = 0  # update whose row is the last one in the file

    @property
    def directory(self) -> Path | None:
        """The run directory, or None."""
        return self._files.path if self._files else None

    @property
    def checkpoints(self) -> Path | None:
        """Where the run's checkpoints lie, or None."""
        return self._files.checkpoints if self._files else None

    def measure_on(self, device: torch.device) -> None:
        """Begin to meter memory peaks."""
        if self._files:
            self._meter = PeakMeter(device)

    def begin(self, resumed: TrainState | None) -> None:
        """Prepare the files: continue them where `resumed` stands, or start anew."""
        if resumed is not None and resumed.history.losses:
            self.final_loss = resumed.history.losses[-1]
        if self._files is None:
            return
        if resumed is None:
            self._files.start_afresh()
        else:
            self._recorded = self._files.rewind(resumed.step)
            self._phase = (resumed.pending or resumed.schedule).phase
        self._files.whole("config.toml", dumps(unstructure(self._config)))

    def event(self, event: MutableMapping[str, Any]) -> None:
        """Append to events.jsonl."""
        if self._files:
            self._files.line("events.jsonl", event)

    def trained(self, settled: Pending) -> None:
        """Append the row of an ordinary update, once its loss has reached the host."""
        self.final_loss = settled.read_loss()
        if self._files is None or settled.step <= self._recorded:
            return
        self._files.row(
            {
                "step": settled.step,
                "phase": settled.phase.name,
                "loss": self.final_loss,
                "was_predicted": False,
                "grad_norm": settled.read_norm(),
                "confidence": None,
                "seconds": round(settled.seconds, 6),
                **(attrs.asdict(settled.memory) if settled.memory else {}),
            }
        )

    def stepped(self, result: StepResult, hooks: HookManager) -> None:
        """Append the row of an accepted jump, the metrics that are due, and note the peaks."""
        if self._files is None:
            return
        jump = result.jump
        if jump is not None and jump.accepted:
            self._files.row(
                {
                    "step": result.step,
                    "phase": "predict",
                    "loss": jump.loss_after,
                    "was_predicted": True,
                    "confidence": jump.confidence,
                    "seconds": round(jump.seconds, 6),
                    **(attrs.asdict(result.memory) if result.memory else {}),
                }
            )
        changed = result.phase is not self._phase
        if changed or result.step % self._config.run.log_every == 0:
            metrics = hooks.collect_metrics(result.step, result.phase)
            self.metrics(result.step, result.phase, metrics)
        self._note_peak(result, changed=changed)

    def metrics(self, step: int, phase: Phase, values: dict[str, float]) -> None:
        """Append to metrics.jsonl."""
        if self._files and values:
            self._files.line("metrics.jsonl", {"step": step, "phase": phase.name, **values})

    def _note_peak(self, result: StepResult, *, changed: bool) -> None:
        if self._meter is None:
            return
        # A step that jumped holds the peak of Predict; its training is seen from the next on.
        name = "predict" if result.jump is not None else result.phase.name
        peak = self._meter.read()
        known = self.peaks.get(name)
        self.peaks[name] = _higher(known, peak) if known else peak
        if changed or result.jump is not None:
            self._meter.reset()
        self._phase = result.phase

    def summary(self, state: TrainState, val_loss: float | None, digest: str) -> dict[str, Any]:
        """Return the summary and write summary.json."""
        summary = {
            "val_loss": val_loss,
            "final_loss": self.final_loss,
            "steps": state.step,
            "backward_skipped": state.backward_skipped,
            "jumps": state.jumps,
            "speedup": None,
            "peak_bytes": {name: attrs.asdict(peak) for name, peak in self.peaks.items()},
            "seconds": round(time.perf_counter() - self._started, 3),
            "digest": digest,
        }
        if self._files:
            self._files.whole("summary.json", json.dumps(jsonable(summary), indent=2) + "\n")
        return summary

    def close(self) -> None:
        """Give the directory back."""
        if self._files:
            self._files.close()


def _higher(one: MemorySample, other: MemorySample) -> MemorySample:
    return attrs.evolve(
        one,
        device_bytes=max(one.device_bytes or 0, other.device_bytes or 0) or None,
        host_bytes=max(one.host_bytes, other.host_bytes),
    )
