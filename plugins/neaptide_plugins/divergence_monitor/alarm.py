"""The alarm level, as an immutable state machine."""

from __future__ import annotations

from enum import IntEnum

import attrs


class AlarmLevel(IntEnum):
    """The severity of the findings so far, from lowest to highest."""

    NORMAL = 0
    CAUTION = 1
    WARNING = 2
    CRITICAL = 3


@attrs.frozen
class Alarm:
    """The alarm level, and the updates since the last finding or the last change of the level.

    A finding is a sign of divergence in an update.
    """

    level: AlarmLevel = AlarmLevel.NORMAL
    quiet: int = 0

    def after(self, findings: int, *, critical: bool, calm: int) -> Alarm:
        """Return the alarm after one more update.

        `findings` is the number of findings in the update. One finding raises the level by one, at
        most to WARNING. Several findings raise the level to WARNING. If `critical` is true, the
        level is CRITICAL. After `calm` updates in a row without a finding, the level falls by one.
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
