"""The level of alarm as a pure state machine."""

from __future__ import annotations

from enum import IntEnum

import attrs


class AlarmLevel(IntEnum):
    """The severity of the findings."""

    NORMAL = 0
    CAUTION = 1
    WARNING = 2
    CRITICAL = 3


@attrs.frozen
class Alarm:
    """The level, and the number of updates since the last finding or change of level."""

    level: AlarmLevel = AlarmLevel.NORMAL
    quiet: int = 0

    def after(self, findings: int, *, critical: bool, calm: int) -> Alarm:
        """Return the alarm after one more update.

        One finding raises the level by one, up to WARNING; several raise it to WARNING; `critical`
        raises it to CRITICAL. `calm` updates without a finding lower the level by one.
        """
        if critical:
            return Alarm(AlarmLevel.CRITICAL)
        if findings:
            raised = (
                AlarmLevel.WARNING
                if findings > 1
                else AlarmLevel(min(self.level + 1, AlarmLevel.WARNING))
            )
            return Alarm(max(self.level, raised))
        if self.level is AlarmLevel.NORMAL:
            return self
        if self.quiet + 1 >= calm:
            return Alarm(AlarmLevel(self.level - 1))
        return attrs.evolve(self, quiet=self.quiet + 1)
