"""Writes the records of a run to an event file."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.io.folder import Folder

from .config import TensorboardConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide import Phase, Run, StepRecord, StepResult

    from .event_file import EventFile

_TAGS = {"lr": "train/lr", "val_loss": "eval/loss"}


@attrs.define(eq=False)
class Tensorboard(Plugin[TensorboardConfig]):
    """An observer. If it has no directory to write to, it logs a warning and does nothing."""

    _folder: Folder | None = attrs.field(init=False, default=None)
    _opened: EventFile | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError if the package tensorboard is missing."""
        if find_spec("tensorboard") is None:
            msg = (
                'tensorboard is not installed: pip install "neaptide[tensorboard]" '
                "@ plugins.tensorboard"
            )
            raise ConfigError(msg)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Choose the directory; the first event creates the file."""
        if self.config.log_dir is not None:
            self._folder = _checked(Path(self.config.log_dir))
        else:
            self._folder = run.plugin_folder("tensorboard")
        if self._folder is None:
            advice = "set run.dir or plugins.tensorboard.log_dir"
            run.log.warning("tensorboard.nothing_written", advice=advice)

    @property
    def _events(self) -> EventFile | None:
        if self._opened is None and self._folder is not None:
            from .event_file import EventFile  # noqa: PLC0415 - tensorboard may be missing

            self._opened = EventFile(self._folder, self.config.flush_seconds)
        return self._opened

    @hookimpl
    def on_phase_enter(self, phase: Phase, previous: Phase | None, step: int) -> None:
        """Add the phase as text. At the start or a resume, discard the points of later updates."""
        events = self._events
        if events is None:
            return
        if previous is None:
            events.start(step + 1)
        events.text(step + 1, "phase", phase.name)

    @hookimpl
    def on_record(self, record: StepRecord) -> None:
        """Add the points of an update or a jump."""
        events = self._events
        if events is not None and (record.was_predicted or record.step % self.config.every == 0):
            events.scalars(record.step, _points(record))

    @hookimpl
    def after_step(self, step: int, result: StepResult) -> None:
        """Add a jump's confidence, and its horizon as `jump/accepted` or `jump/refused`."""
        jump, events = result.jump, self._events
        if jump is not None and events is not None:
            verdict = "accepted" if jump.accepted else "refused"
            values = {f"jump/{verdict}": float(jump.horizon), "jump/confidence": jump.confidence}
            events.scalars(step, {tag: value for tag, value in values.items() if value is not None})

    @hookimpl
    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the learning rate, plugins' metrics and validation losses."""
        events = self._events
        if events is not None:
            named = {_TAGS.get(name, name.replace(".", "/", 1)): metrics[name] for name in metrics}
            events.scalars(step, named)

    @hookimpl
    def on_run_end(self) -> None:
        """Write the pending events, and close the file."""
        events, self._opened, self._folder = self._opened, None, None
        if events is not None:
            try:
                events.flush()
            finally:
                events.close()


def _checked(directory: Path) -> Folder:
    try:
        folder = Folder(directory, make=True)
        reason = "" if os.access(folder.path, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        msg = f"cannot write in {directory.resolve()}: {reason} @ plugins.tensorboard.log_dir"
        raise ConfigError(msg)
    return folder


def _points(record: StepRecord) -> dict[str, float]:
    """Return the points of a record by tag. A record of a jump has only the loss after the jump."""
    points: dict[str, float | None] = {f"loss/{record.phase}": record.loss}
    if not record.was_predicted:
        points |= {
            "train/loss": record.loss,
            "train/grad_norm": record.grad_norm,
            "train/seconds": record.seconds,
            "memory/device_bytes": record.device_bytes,
            "memory/host_bytes": record.host_bytes,
        }
    return {tag: value for tag, value in points.items() if value is not None}
