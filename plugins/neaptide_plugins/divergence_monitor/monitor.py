"""Checks the losses and gradient norms of each update, and reports changes of the alarm level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from . import detect
from .alarm import Alarm, AlarmLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config import DivergenceMonitorConfig

CRITICAL_SIGMAS = 10.0
"""A loss is critical if it is more than this many standard deviations above the mean."""


@attrs.frozen
class Change:
    """A change of the alarm level, and the findings that caused the change."""

    before: AlarmLevel
    level: AlarmLevel
    found: tuple[str, ...]


@attrs.define
class AlarmMonitor:
    """Keeps the alarm level. The method `read` checks each update once."""

    config: DivergenceMonitorConfig
    alarm: Alarm = attrs.field(factory=Alarm)
    seen: int = 0
    """Number of updates checked so far."""
    since: int = 0
    """Number of updates before the last rollback. Later updates are not compared with these."""
    findings: int = 0

    @property
    def level(self) -> AlarmLevel:
        """The alarm level now."""
        return self.alarm.level

    def read(
        self, updates: int, losses: Sequence[float], norms: Sequence[float]
    ) -> Iterator[Change]:
        """Check the updates that were not checked yet, and yield every change of the level.

        `updates` is the number of all updates so far. `losses` and `norms` contain the values of
        the newest updates, from oldest to newest. `norms` may be shorter than `losses`.
        """
        new = min(updates - self.seen, len(losses))
        self.seen = updates
        for age in reversed(range(new)):
            count = min(self.config.window + 1, updates - age - self.since)
            if count > 0:
                yield from self._judge(_upto(losses, age, count), _upto(norms, age, count))

    def skipped(self) -> Iterator[Change]:
        """Handle an update that was skipped because a value was not finite; yield level changes."""
        return self._move(("non-finite",), critical=True)

    def is_normal(self, loss: float, losses: Sequence[float]) -> bool:
        """Return whether a loss is finite, and no spike after the newest `losses`.

        `losses` are the losses of the updates that were read, from oldest to newest.
        """
        count = max(0, min(self.config.window, self.seen - self.since))
        compared = [*_upto(losses, 0, count), loss]
        return not detect.not_finite(compared) and detect.rise(compared) <= self.config.loss_sigma

    def forget(self, unread: int) -> None:
        """Do not compare later updates with the updates so far, because of a rollback.

        `unread` is the largest possible number of updates that were made and not read yet.
        """
        self.since = self.seen + unread

    def _judge(self, losses: Sequence[float], norms: Sequence[float]) -> Iterator[Change]:
        config, rise = self.config, detect.rise(losses)
        not_finite = detect.not_finite(losses) or detect.not_finite(norms)
        checks = {
            "non-finite": not_finite,
            "loss spike": rise > config.loss_sigma,
            "exploding gradient": detect.exploded(norms, config.gradient_multiplier),
            "vanishing gradient": detect.vanished(norms, config.vanishing),
            "oscillation": detect.oscillates(losses, config.oscillation),
        }
        found = tuple(name for name, is_so in checks.items() if is_so)
        critical = not_finite or rise > max(config.loss_sigma, CRITICAL_SIGMAS)
        return self._move(found, critical=critical)

    def _move(self, found: tuple[str, ...], *, critical: bool) -> Iterator[Change]:
        before = self.level
        self.findings += len(found)
        self.alarm = self.alarm.after(len(found), critical=critical, calm=self.config.calm)
        if self.level is not before:
            yield Change(before, self.level, found)


def _upto(values: Sequence[float], age: int, count: int) -> Sequence[float]:
    """Return `count` successive values; the last is `age` places before the newest value."""
    end = max(0, len(values) - age)
    return values[max(0, end - count) : end]
