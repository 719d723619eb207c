"""Series of any length in bounded memory.

A series is a list of buckets. A bucket stores the first, the last, the lowest and the highest of
neighbouring points.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.pages.text import drawable

if TYPE_CHECKING:
    from collections.abc import Iterator

Point = tuple[int, float]
"""A step and a value."""

BUCKETS = 400
"""Largest number of buckets in a series. A bucket has up to four points."""
_PHASES, _MARKED = 16, 200
OTHER = "(other)"


@attrs.define
class Spread:
    """The count, sum and extremes of the added values."""

    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> None:
        """Add a finite value."""
        self.count += 1
        self.total += value
        if value < self.low:  # noqa: PLR1730 - a call for each of millions of values costs more
            self.low = value
        if value > self.high:  # noqa: PLR1730 - as above
            self.high = value

    @property
    def mean(self) -> float | None:
        """The mean of the values; None if no value was added."""
        return self.total / self.count if self.count else None

    def facts(self) -> dict[str, float | int | None]:
        """Return count, mean, min and max."""
        extremes = (self.low, self.high) if self.count else (None, None)
        return {"count": self.count, "mean": self.mean, "min": extremes[0], "max": extremes[1]}


@attrs.define
class Bucket:
    """A summary of neighbouring points: the first, the last, the lowest and the highest."""

    first: Point
    last: Point
    low: Point
    high: Point
    begins: int
    """Number of the first point's stretch. A stretch is a sequence of steps in one phase. `ends` is
    the number of the last point's stretch."""
    ends: int

    def take(self, later: Bucket) -> None:
        """Merge the next bucket into this bucket."""
        self.last, self.ends = later.last, later.ends
        self.low = min(self.low, later.low, key=_value)
        self.high = max(self.high, later.high, key=_value)

    def points(self) -> list[Point]:
        """Return the distinct points of the bucket, sorted by step."""
        return sorted(dict.fromkeys((self.first, self.low, self.high, self.last)), key=_step)


@attrs.define
class StepSeries:
    """A series of values over steps.

    It stores at most `4 * limit` points. All spikes are among these points.
    """

    limit: int = BUCKETS
    width: int = 1
    """Number of steps per bucket. It is doubled whenever there are more than `limit` buckets."""
    buckets: dict[int, Bucket] = attrs.field(factory=dict)

    def add(self, step: int, value: float, stretch: int = 0) -> None:
        """Add a finite value. A chart connects the points of one `stretch` (steps in one phase)."""
        bucket = self.buckets.get(step // self.width)
        if bucket is None:
            point = (step, value)
            self.buckets[step // self.width] = Bucket(point, point, point, point, stretch, stretch)
            while len(self.buckets) > self.limit:
                self._coarsen()
            return
        bucket.last, bucket.ends = (step, value), stretch
        if value < bucket.low[1]:
            bucket.low = bucket.last
        elif value > bucket.high[1]:
            bucket.high = bucket.last

    def _coarsen(self) -> None:
        self.width *= 2
        finer, self.buckets = self.buckets, {}
        for key in sorted(finer):
            bucket = self.buckets.setdefault(key // 2, finer[key])
            if bucket is not finer[key]:
                bucket.take(finer[key])

    def points(self) -> list[Point]:
        """Return the stored points, sorted by step."""
        return [point for line in self.lines() for point in line]

    def lines(self) -> list[list[Point]]:
        """Return the stored points as lines. A chart connects the points of one line."""
        found: list[list[Point]] = []
        before: tuple[int, Bucket] | None = None
        for key in sorted(self.buckets):
            bucket = self.buckets[key]
            if before and (bucket.begins == before[1].ends or key == before[0] + 1):
                found[-1].extend(bucket.points())
            else:
                found.append(bucket.points())
            before = (key, bucket)
        return found


@attrs.define
class Track:
    """One quantity over steps, by phase."""

    courses: dict[str, StepSeries] = attrs.field(factory=dict)
    spreads: dict[str, Spread] = attrs.field(factory=dict)
    unusual: list[int] = attrs.field(factory=list)
    """The first steps with a value that was not finite. `unusual_count` counts all such steps."""
    unusual_count: int = 0
    last: Point | None = None
    _phase: str | None = None
    _stretch: int = 0

    def add(self, step: int, phase: str, value: float) -> None:
        """Add a value, finite or not."""
        if not drawable(value):
            self.unusual_count += 1
            if len(self.unusual) < _MARKED:
                self.unusual.append(step)
            return
        if phase != self._phase:
            phase = self._enter(phase)
        self.last = (step, value)
        self.courses[phase].add(step, value, self._stretch)
        self.spreads[phase].add(value)

    def _enter(self, phase: str) -> str:
        known = phase in self.courses or len(self.courses) < _PHASES
        name = phase if known else OTHER
        course = self.courses.setdefault(name, StepSeries())
        self.spreads.setdefault(name, Spread())
        self._stretch += 1
        if self.last is not None:  # the line starts where the previous phase's line ended
            course.add(*self.last, self._stretch)
        self._phase = name
        return name

    def lines(self) -> list[list[Point]]:
        """Return the lines of all phases. A phase's line begins where the previous one ended."""
        return [line for course in self.courses.values() for line in course.lines()]

    def points(self) -> list[Point]:
        """Return the distinct points of all phases, sorted by step."""
        return sorted({point for line in self.lines() for point in line})

    @property
    def whole(self) -> Spread:
        """The count, sum and extremes over all phases."""
        whole = Spread()
        for spread in self.spreads.values():
            whole.count += spread.count
            whole.total += spread.total
            whole.low = min(whole.low, spread.low)
            whole.high = max(whole.high, spread.high)
        return whole

    def facts(self) -> dict[str, dict[str, float | int | None]]:
        """Return the figures of every phase."""
        return {phase: spread.facts() for phase, spread in self.spreads.items()}


@attrs.define
class Stretches:
    """The phases in the order of training, with the first and the last step of each phase.

    The list is None if a run changes its phase too often.
    """

    limit: int = 300
    found: list[tuple[str, int, int]] | None = attrs.field(factory=list)

    def add(self, step: int, phase: str) -> None:
        """Add a step."""
        if self.found is None:
            return
        if self.found and self.found[-1][0] == phase:
            self.found[-1] = (phase, self.found[-1][1], step)
        elif len(self.found) < self.limit:
            self.found.append((phase, step, step))
        else:
            self.found = None


@attrs.define
class Ends:
    """The first and the last items of a sequence."""

    limit: int
    head: list[dict[str, object]] = attrs.field(factory=list)
    tail: list[dict[str, object]] = attrs.field(factory=list)
    count: int = 0

    def add(self, item: dict[str, object]) -> None:
        """Add an item."""
        self.count += 1
        if len(self.head) < self.limit:
            self.head.append(item)
            return
        self.tail.append(item)
        if len(self.tail) >= 2 * self.limit:
            del self.tail[: -self.limit]

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield from self.head
        yield from self.tail[-self.limit :]

    @property
    def left_out(self) -> int:
        """Number of items that were added but are not stored."""
        return self.count - len(self.head) - len(self.tail[-self.limit :])


def _step(point: Point) -> int:
    return point[0]


def _value(point: Point) -> float:
    return point[1]
