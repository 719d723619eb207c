"""Writes the records of a run into its directory, and measures the memory peak of each phase."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api.records import StepRecord
from neaptide.api.steps import Outcome
from neaptide.config import dumps, unstructure
from neaptide.errors import ConfigError
from neaptide.io.jsonable import jsonable
from neaptide.io.logging import CONSOLE
from neaptide.io.summary import Summary
from neaptide.plugin import loaded

from .rundir import RunDirectory, is_own

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from neaptide.api.memory import MemorySample
    from neaptide.api.phases import Phase
    from neaptide.api.steps import StepResult
    from neaptide.config import RunConfig
    from neaptide.config.schema import RunSection
    from neaptide.hooks.manager import HookManager
    from neaptide.loop.state import Pending, TrainState

FACTS_GROUP = "neaptide.facts"
"""The group of entry points that return facts about this machine, for machine.json."""


class Recorder:
    """Writes rows, metrics and events as they occur, and passes them to the plugins."""

    def __init__(self, config: RunConfig, origins: Mapping[str, str] | None = None) -> None:
        self._origins = origins
        self._config, self._every = config, config.run.log_every
        self._files = _files(config.run)
        self._hooks: HookManager | None = None
        self._metrics_read = False
        self._read = False  # whether a file or a plugin uses records
        self._timed = [0, 0.0]  # tokens and seconds of the steps since the last metrics
        self._meter: Any = None
        self._phase: Phase | None = None
        self.peaks: dict[str, MemorySample] = {}
        self.final_loss: float | None = None
        self._early: list[MutableMapping[str, Any]] | None = []
        """Events from before `begin`; written in `begin`, because `begin` may delete the file."""
        self.summed_up = False
        """True if the run's summary was written."""
        self._started = time.perf_counter()
        self._recorded = 0  # number of the update in the last row of the file
        self.saved: Mapping[str, Any] = {}
        """What the loaded checkpoint knows about the records; see `known`."""
        self.lost: dict[str, str] = {}
        """What `begin` found to be lost of the records of a resumed run, by file."""

    @property
    def directory(self) -> Path | None:
        """The run directory, or None."""
        return self._files.path if self._files else None

    @property
    def checkpoints(self) -> Path | None:
        """The directory of the run's checkpoints, or None."""
        return self._files.checkpoints if self._files else None

    def attach(self, hooks: HookManager, meter: Any) -> None:
        """From now on, pass records to `hooks`, and read memory peaks from `meter`, or none."""
        self._hooks = hooks
        self._read = self._files is not None or hooks.implements("on_record")
        self._metrics_read = self._files is not None or hooks.implements("on_metrics")
        self._meter = meter

    def begin(self, resumed: TrainState | None) -> None:
        """Continue the files after update `resumed.step`; start new files if `resumed` is None."""
        if resumed is not None and resumed.history.losses:
            self.final_loss = resumed.history.losses[-1]
        if self._files is None:
            return
        if resumed is None:
            moved = self._files.start_afresh()
            if moved is not None:
                CONSOLE.warning("report and plugins' files of an earlier run are now in %s", moved)
        else:
            self._recorded, self.lost = self._files.rewind(resumed.step, self.saved)
            self._phase = (resumed.pending or resumed.schedule).phase
            self.peaks = self._files.peaks_of(resumed.step)
        self._files.whole("config.toml", dumps(unstructure(self._config)))
        facts = {key: one for found in loaded(FACTS_GROUP) for key, one in found().items()}
        self._files.whole("machine.json", _document(facts))
        if self._origins is not None:
            self._files.whole("origins.json", _document(dict(self._origins)))
        self._write_early()

    def facts(self, step: int) -> dict[str, Any]:
        """Return the fact about the records for the checkpoint of update `step`."""
        return {"records": self._files.records.saved(step)} if self._files else {}

    def known(self, checkpoint: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fact of a checkpoint about the records. Errors mean that it is invalid.

        Checkpoints of earlier versions have none; those of other runs are about other records.
        """
        found = facts.get("records", {}) if is_own(checkpoint, self._config.run) else {}
        if self._files:
            self._files.records.check(found)
        return found

    def event(self, event: MutableMapping[str, Any]) -> None:
        """Append an event to events.jsonl."""
        if self._files is None:
            return
        if self._early is None:
            self._files.line("events.jsonl", event)
        else:
            self._early.append(event)

    def _write_early(self) -> None:
        early, self._early = self._early or [], None
        for event in early:
            self.event(event)

    def trained(self, settled: Pending) -> None:
        """Record an ordinary update. Reading the loss may wait for the device."""
        self.final_loss = settled.read_loss()
        if self._read and settled.step > self._recorded:
            self._record(
                StepRecord(
                    step=settled.step,
                    phase=settled.phase.name,
                    loss=self.final_loss,
                    was_predicted=False,
                    grad_norm=settled.read_norm(),
                    seconds=round(settled.seconds, 6),
                    **_bytes(settled.memory),
                )
            )

    def stepped(self, result: StepResult) -> None:
        """Record an accepted jump and the metrics that are due; update the memory peak."""
        jump = result.jump
        if self._read and jump is not None and jump.accepted:
            self._record(
                StepRecord(
                    step=result.step,
                    phase="predict",
                    loss=jump.loss_after,
                    was_predicted=True,
                    confidence=jump.confidence,
                    seconds=round(jump.seconds, 6),
                    **_bytes(result.memory),
                )
            )
        self._timed[0] += result.tokens or 0
        self._timed[1] += result.seconds
        changed = result.phase is not self._phase
        due = result.step % self._every == 0 and result.outcome is not Outcome.DEFERRED
        if (changed or due) and self._metrics_read:
            self._collect(result)
        self._phase = result.phase

    def phase_ends(self, phase: Phase | None) -> None:
        """Store the memory peak of the phase that ends. Then reset the meter.

        Before the first phase, `phase` is None, and the peak is not stored.
        """
        if self._meter is None:
            return
        if phase is not None:
            peak = self._meter.read()
            known = self.peaks.get(phase.name)
            self.peaks[phase.name] = _higher(known, peak) if known else peak
        self._meter.reset()

    def metrics(self, step: int, phase: Phase, values: Mapping[str, float]) -> None:
        """Append values to metrics.jsonl and pass them to the plugins."""
        if not values:
            return
        if self._files:
            self._files.line("metrics.jsonl", {"step": step, "phase": phase.name, **values})
        if self._hooks is not None:
            self._hooks.notify("on_metrics", step=step, phase=phase, metrics=dict(values))

    def forget_evaluation(self, step: int) -> None:
        """Remove the validation loss of update `step`."""
        if self._files:
            self._files.forget_evaluation(step)

    def _record(self, record: StepRecord) -> None:
        if self._files:
            self._files.row(record)
        if self._hooks is not None:
            self._hooks.notify("on_record", record=record)

    def _collect(self, result: StepResult) -> None:
        assert self._hooks is not None, "attached before the first step"
        own = {} if result.lr is None else {"lr": result.lr}
        (tokens, seconds), self._timed = self._timed, [0, 0.0]
        if tokens:
            own["tokens_per_second"] = tokens / seconds
        collected = self._hooks.collect_metrics(result.step, result.phase)
        self.metrics(result.step, result.phase, {**own, **collected})

    def summary(self, state: TrainState, val_loss: float | None, digest: str) -> Summary:
        """Return the summary and write it to summary.json."""
        self.phase_ends(state.phase)
        summary = Summary(
            {
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
        )
        if self._files:
            self._files.whole("summary.json", _document(summary))
        self.summed_up = True
        return summary

    def close(self) -> None:
        """If `begin` was not called, write the earlier events; then close the run directory."""
        self._write_early()
        if self._files:
            self._files.close()


def _files(run: RunSection) -> RunDirectory | None:
    elsewhere = run.checkpoint_dir
    if run.dir is not None:
        return RunDirectory(Path(run.dir), Path(elsewhere) if elsewhere else None)
    if elsewhere is not None:
        msg = f"{elsewhere!r} needs a run directory: set run.dir @ run.checkpoint_dir"
        raise ConfigError(msg)
    return None


def _document(value: Any) -> str:
    return json.dumps(jsonable(value), indent=2) + "\n"


def _bytes(memory: MemorySample | None) -> dict[str, int | None]:
    return {} if memory is None else attrs.asdict(memory)


def _higher(one: MemorySample, other: MemorySample) -> MemorySample:
    return attrs.evolve(
        one,
        device_bytes=max(one.device_bytes or 0, other.device_bytes or 0) or None,
        host_bytes=max(one.host_bytes, other.host_bytes),
    )
