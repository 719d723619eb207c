"""Running statistics in constant memory, and the table they end in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MIB = 2**20
SPIKES_SHOWN = 5


@attrs.define
class Running:
    """Count, mean, least and most of a stream of numbers."""

    count: int = 0
    mean: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        self.least = min(self.least, value)
        self.most = max(self.most, value)


@attrs.define
class Course:
    """The first, last and highest of a stream of byte counts."""

    initial: int
    final: int
    peak: int

    def add(self, now: int, mark: int) -> None:
        """Take in one count, and the highest since the one before where that is known."""
        self.final = now
        self.peak = max(self.peak, now, mark)


@attrs.define
class Rises:
    """Tells a step whose highest count is well over that of the sampled step before it.

    Several counts of one step (its micro-batches) are not compared with each other: gradients
    appear within every step.
    """

    threshold: float
    _step: int = -1
    _highest: int = 0
    _before: int | None = None
    _told: bool = False

    def add(self, step: int, value: int) -> int | None:
        """Take in one count; return the rise in bytes the first time a step goes over."""
        if step != self._step:
            self._before = self._highest if self._step >= 0 else None
            self._step, self._highest, self._told = step, value, False
        self._highest = max(self._highest, value)
        if self._told or self._before is None or value - self._before < self.threshold:
            return None
        self._told = True
        return value - self._before


@attrs.frozen(order=True)
class Spike:
    """A rise, where it was seen."""

    rise: int
    step: int
    phase: str
    moment: str
    tier: str

    def __str__(self) -> str:
        where = f"{self.phase} {self.moment} ({self.tier})"
        return f"spike: +{self.rise / 1e6:.0f} MB at step {self.step}, {where}"


@attrs.define
class Account:
    """What a run's samples add up to, whatever its length: a few numbers a phase and moment."""

    threshold: float
    """Bytes from which a rise is a spike."""
    courses: dict[str, Course] = attrs.field(factory=dict)
    """By tier."""
    moments: dict[tuple[str, str, str], Running] = attrs.field(factory=dict)
    """By tier, phase and moment."""
    spikes: list[Spike] = attrs.field(factory=list)
    """The largest ones."""
    spike_count: int = 0
    _rises: dict[tuple[str, str, str], Rises] = attrs.field(factory=dict)

    def start(self, tiers: Mapping[str, tuple[int, int]]) -> None:
        """Take in what was held before the first step: `(now, highest)` by tier."""
        self.courses = {tier: Course(now, now, now) for tier, (now, _) in tiers.items()}

    def add(
        self, step: int, phase: str, moment: str, tiers: Mapping[str, tuple[int, int]]
    ) -> list[Spike]:
        """Take in one sample; return the spikes it shows."""
        found = []
        for tier, (now, mark) in tiers.items():
            key = (tier, phase, moment)
            self.courses[tier].add(now, mark)
            self.moments.setdefault(key, Running()).add(now)
            rise = self._rises.setdefault(key, Rises(self.threshold)).add(step, now)
            if rise is not None:
                found.append(Spike(rise, step, phase, moment, tier))
        self.spike_count += len(found)
        self.spikes = sorted([*self.spikes, *found], reverse=True)[:SPIKES_SHOWN]
        return found


def render(account: Account, capacities: Mapping[str, int], notes: Iterable[str]) -> str:
    """Return the table of a run, in MiB; `capacities` in bytes by tier."""
    lines = [
        *notes,
        f"{'tier':<8}{'initial':>10}{'final':>10}{'peak':>10}{'capacity':>12}{'used':>8}  MiB",
    ]
    for tier, course in account.courses.items():
        counts = "".join(f"{_mib(n):>10}" for n in (course.initial, course.final, course.peak))
        capacity = capacities[tier]
        lines.append(f"{tier:<8}{counts}{_mib(capacity):>12}{course.peak / capacity:>8.1%}")
    head = f"{'samples':>8}{'mean':>10}{'max':>10}{'min':>10}"
    lines.append(f"{'tier':<8}{'phase':<9}{'moment':<10}{head}  MiB")
    for tier in account.courses:
        for (of, phase, moment), running in account.moments.items():
            if of == tier:
                cells = "".join(
                    f"{_mib(n):>10}" for n in (running.mean, running.most, running.least)
                )
                lines.append(f"{tier:<8}{phase:<9}{moment:<10}{running.count:>8}{cells}")
    lines += map(str, account.spikes)
    more = account.spike_count - len(account.spikes)
    return "\n".join([*lines, f"and {more} smaller spikes"] if more else lines)


def _mib(nbytes: float) -> str:
    return f"{nbytes / _MIB:.1f}"
