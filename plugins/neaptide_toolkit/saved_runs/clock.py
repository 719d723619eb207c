"""Decides when `trainer.fit` saves: after so many updates, or else by time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide.config.schema import RunSection


class SaveClock:
    """Says after `checkpoint_every` updates that a save is due, or else by time.

    By time, a save is due after `checkpoint_minutes`, but not before 20 times the duration of the
    last save: so saving takes at most 5 % of a run's time.
    """

    def __init__(self, run: RunSection) -> None:
        self._run = run
        self._since, self._took = time.monotonic(), 0.0

    def due(self, step: int) -> bool:
        """Return whether the run must save after update `step`."""
        if self._run.checkpoint_every:
            return step % self._run.checkpoint_every == 0
        waited, minutes = time.monotonic() - self._since, self._run.checkpoint_minutes
        return minutes > 0 and waited >= max(60 * minutes, 20 * self._took)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the save inside the context, and start the clock again at its end."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._took = self._since - began
