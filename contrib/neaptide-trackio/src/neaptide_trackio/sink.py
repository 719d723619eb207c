"""Passes points to a run of Trackio."""

from __future__ import annotations

import secrets
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import trackio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide_toolkit.loggers import WrittenPoints

    from .config import TrackioConfig


class TrackioSink:
    """A run of Trackio, whose thread writes the points within half a second.

    Args:
        written: what Trackio has of the run.
        config: the settings of the plugin.
        name: the first part of the name, if the settings have none.
        settings: the configuration of the run.
    """

    def __init__(
        self,
        written: WrittenPoints,
        config: TrackioConfig,
        name: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._written = written
        resumed = written.run is not None
        # Trackio finds a run by its name: those of two run directories must differ.
        fresh = f"{config.name or name or 'run'}-{secrets.token_hex(3)}"
        chosen = written.run or fresh
        automatic = None if config.system_metrics else False
        with redirect_stdout(sys.stderr):  # Trackio prints, and stdout is the run's
            self._run = trackio.init(
                project=config.project,
                name=chosen,
                group=config.group,
                space_id=config.space_id,
                config=dict(settings),
                resume="must" if resumed else "never",
                embed=False,
                auto_log_gpu=automatic,
                auto_log_cpu=automatic,
            )
        written.start(chosen)

    def begin(self, step: int) -> None:
        """Leave out what Trackio has of the updates after `step`."""
        self._written.begin(step)

    def phase(self, step: int, name: str) -> None:
        """Add the name of the phase as text."""
        self._log(step, {"phase": name})

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row."""
        self._log(step, values)

    def close(self, error: BaseException | None) -> None:
        """Wait until all is written. Trackio does not keep how a run ended."""
        del error
        self._written.close()
        with redirect_stdout(sys.stderr):
            if trackio.context_vars.current_run.get() is self._run:
                trackio.finish()  # otherwise Trackio finishes it again when Python ends
            else:
                self._run.finish()

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        new = self._written.new(step, values)
        if new:
            self._run.log(dict(new), step=step)
            self._written.add(step, new)
