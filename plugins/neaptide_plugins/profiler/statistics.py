"""Running statistics by tier, phase and moment, and the largest spikes, in constant memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

SPIKES_SHOWN = 5


@attrs.define
class Running:
    """The count, mean, minimum and maximum of a stream of numbers."""

    count: int = 0
    mean: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    def add(self, value: float) -> None:
        """Add one number."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def merged(self, other: Running) -> Running:
        """Return the statistics of both streams together."""
        count = self.count + other.count
        if count == 0:
            return Running()
        mean = self.mean + (other.mean - self.mean) * (other.count / count)
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Running(count, mean, least, most)


@attrs.define
class PhaseBytes:
    """Statistics of the samples of a phase, or of one moment of a phase. Also stores the peak."""

    samples: Running = attrs.field(factory=Running)
    peak: int = 0
    """Peak of the samples in bytes.

    The peak of a sample is the high-water mark since the previous sample.
    """

    def merged(self, other: PhaseBytes) -> PhaseBytes:
        """Return the statistics of the samples of both objects."""
        return PhaseBytes(self.samples.merged(other.samples), max(self.peak, other.peak))


@attrs.define
class ByteCourse:
    """First, last and highest value of a stream of byte counts, and the last high-water mark.

    A high-water mark is the largest count since the mark was last reset.
    """

    initial: int
    final: int
    peak: int
    _mark: int

    def add(self, now: int, mark: int) -> int:
        """Add the bytes `now` and the high-water mark `mark`; return the peak since the last call.

        If the mark has not changed, it belongs to an older peak, so `now` is returned.
        The mark can be lower than at the last call, because other code may reset it.
        """
        self.final = now
        high = now if mark == self._mark else max(now, mark)
        self._mark = mark
        self.peak = max(self.peak, high)
        return high


@attrs.define
class Rises:
    """Detects a rise of the bytes in use above the highest value of the previous sampled step.

    A step with several micro-batches has several values. The values of one step are not compared
    with each other, because gradients are allocated within every step.
    """

    threshold: float
    _step: int = -1
    _highest: int = 0
    _before: int | None = None
    _told: bool = False

    def add(self, step: int, value: int) -> int | None:
        """Add the bytes in use.

        If the rise in bytes reaches the threshold, return the rise, at most once per step.
        """
        if step != self._step:
            self._before = self._highest if self._step >= 0 else None
            self._step, self._highest, self._told = step, value, False
        elif value > self._highest:
            self._highest = value
        if self._told or self._before is None or value - self._before < self.threshold:
            return None
        self._told = True
        return value - self._before


@attrs.frozen(order=True)
class Spike:
    """A rise in bytes, with its step, phase, moment and tier."""

    rise: int
    step: int
    phase: str
    moment: str
    tier: str

    def __str__(self) -> str:
        where = f"{self.phase} {self.moment} ({self.tier})"
        return f"spike: +{self.rise / 1e6:.0f} MB at step {self.step}, {where}"


@attrs.frozen
class _Counters:
    """The counters of one tier, phase and moment."""

    course: ByteCourse
    held: PhaseBytes
    rises: Rises


@attrs.define
class Account:
    """The statistics of a run's samples: a few numbers per phase and moment."""

    threshold: float
    """Least rise in bytes that is a spike."""
    courses: dict[str, ByteCourse] = attrs.field(factory=dict)
    """First, last and highest byte count, by tier (`device` or `host`)."""
    moments: dict[tuple[str, str, str], PhaseBytes] = attrs.field(factory=dict)
    """Statistics by tier, phase and moment."""
    spikes: list[Spike] = attrs.field(factory=list)
    """The largest spikes."""
    spike_count: int = 0
    _places: dict[tuple[str, str, str], _Counters] = attrs.field(factory=dict)

    def start(self, tiers: Iterable[tuple[str, int, int]]) -> None:
        """Set the memory before the first step.

        Each entry has a tier, its bytes in use now, and its high-water mark.
        """
        self.courses = {tier: ByteCourse(now, now, now, mark) for tier, now, mark in tiers}

    def add(
        self, step: int, phase: str, moment: str, tiers: Iterable[tuple[str, int, int]]
    ) -> list[Spike]:
        """Add a sample and return the spikes in the sample.

        For each tier, the sample has the bytes in use now and the high-water mark.
        """
        found = []
        for tier, now, mark in tiers:
            place = self._places.get((tier, phase, moment)) or self._place(tier, phase, moment)
            held = place.held
            held.peak = max(held.peak, place.course.add(now, mark))
            held.samples.add(now)
            rise = place.rises.add(step, now)
            if rise is not None:
                found.append(Spike(rise, step, phase, moment, tier))
        if found:
            self.spike_count += len(found)
            self.spikes = sorted([*self.spikes, *found], reverse=True)[:SPIKES_SHOWN]
        return found

    def _place(self, tier: str, phase: str, moment: str) -> _Counters:
        place = _Counters(
            self.courses[tier],
            self.moments.setdefault((tier, phase, moment), PhaseBytes()),
            Rises(self.threshold),
        )
        self._places[tier, phase, moment] = place
        return place

    def phases(self) -> dict[tuple[str, str], PhaseBytes]:
        """Return the statistics of each phase over all its moments, by tier and phase."""
        phases: dict[tuple[str, str], PhaseBytes] = {}
        for (tier, phase, _), held in self.moments.items():
            phases[tier, phase] = phases.get((tier, phase), PhaseBytes()).merged(held)
        return phases
