"""Watches what a run writes to its disk: refused writes, and the life of the drive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neaptide_toolkit.machine.wear import days, told
from neaptide_toolkit.offload.disk import DiskError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Run

    from ..config import LayerStreamingConfig
    from .homes import Homes

_FIRST, _LAST = 3, 8
"""Steps between which bytes and time are measured."""
_SHORT = 0.01
"""Share of a drive's life that any run may take without a question."""


class Wear:
    """Measures the bytes that an update writes, and ends a run that wears its drive out.

    Args:
        homes: their files.
        config: what the drive endures.
        run: its log, and how many updates it will make.
        clock: seconds of a clock, for tests.
    """

    def __init__(
        self,
        homes: Homes,
        config: LayerStreamingConfig,
        run: Run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._homes, self._config, self._run, self._clock = homes, config, run, clock
        self._steps = 0
        self._since = (0, 0.0)

    @property
    def written(self) -> int:
        """Return the bytes written so far, past the page cache."""
        return sum(file.written_bytes for file in self._homes.files)

    def after_step(self) -> None:
        """Log refused writes; at the eighth step, log and judge what an update writes.

        Raises DiskError if the run would wear the drive out in fewer than `endurance_days`.
        """
        self._tell_refused()
        self._steps += 1
        if self._steps == _FIRST:
            self._since = self.written, self._clock()
        if self._steps == _LAST:
            written, start = self._since
            self._judge(
                (self.written - written) // (_LAST - _FIRST),
                (self._clock() - start) / (_LAST - _FIRST),
            )

    def end(self) -> None:
        """Log what the run has written, and writes that were refused after its last step."""
        self._tell_refused()
        share = self.written / (self._config.rated_tb * 1e12)
        self._run.log.info("streaming.disk_written", bytes=self.written, of_rated_life=share)

    def _tell_refused(self) -> None:
        for file in self._homes.files:
            while file.moved_to_ram:
                self._run.log.warning("streaming.disk_refused", reason=file.moved_to_ram.pop(0))

    def _judge(self, written: int, seconds: float) -> None:
        rated, steps = self._config.rated_tb * 1e12, self._run.config.train.steps
        text = told(written, seconds, rated=rated)
        lasts = days(written, seconds, rated)
        self._run.log.info("streaming.disk", text=text)
        long = steps is not None and written * steps > _SHORT * rated
        if long and lasts < self._config.endurance_days:
            msg = (
                f"{text}; keep more in RAM, choose an optimizer with less state, or accept it "
                f"with plugins.layer-streaming.endurance_days = {int(lasts)}"
            )
            raise DiskError(msg)
