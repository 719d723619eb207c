"""Passes points to a run of W&B."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import wandb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide_toolkit.loggers import WrittenPoints

    from .config import WandbConfig

STEP = "train/global_step"
"""The axis of all curves. W&B's own step counts calls of `log`, and cannot go back."""


class WandbSink:
    """A run of W&B. W&B's own process writes the points and sends them."""

    def __init__(
        self, written: WrittenPoints, config: WandbConfig, settings: Mapping[str, Any]
    ) -> None:
        self._written = written
        # Not `generate_id`, which draws from Python's random numbers: these are the user's.
        chosen = config.id or written.run or secrets.token_hex(4)
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name,
            group=config.group,
            tags=config.tags or None,
            mode=config.mode,
            dir=config.dir,
            id=chosen,
            resume="allow",
            config=dict(settings),
            allow_val_change=True,
            # The output of the run stays its own; W&B would wrap stdout and stderr.
            settings=wandb.Settings(console="off"),
        )
        written.start(chosen)
        # Offline, W&B would number the rows of a resumed run from 0 again.
        self._row = max(self._run.step, written.rows)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP, step_sync=True)

    def begin(self, step: int) -> None:
        """Leave out what W&B has of the updates after `step`."""
        self._written.begin(step)

    def phase(self, step: int, name: str) -> None:
        """Add the name of the phase as text."""
        self._log(step, {"phase": name})

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""
        self._log(step, values)

    def close(self, error: BaseException | None) -> None:
        """Wait until all is written and sent; the run has failed if there was an error."""
        self._written.close()
        self._run.finish(exit_code=0 if error is None else 1)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        new = self._written.new(step, values)
        if new:
            self._run.log({**new, STEP: step}, step=self._row, commit=True)
            self._row += 1
            self._written.add(step, new)
