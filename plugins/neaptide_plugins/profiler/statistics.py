"""Running statistics in constant memory, and the table they end in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MIB = 2**20


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

    initial: int | None = None
    final: int = 0
    peak: int = 0

    def add(self, value: int) -> None:
        """Take in one count."""
        if self.initial is None:
            self.initial = value
        self.final = value
        self.peak = max(self.peak, value)


def render(
    course: Course,
    moments: Mapping[tuple[str, str], Running],
    *,
    capacity: int,
    measured: str,
    notes: Iterable[str],
) -> str:
    """Return the table of a run: MiB throughout, `capacity` in bytes."""
    lines = [
        f"measured: {measured}",
        (
            f"initial {_mib(course.initial or 0)}, final {_mib(course.final)}, "
            f"peak {_mib(course.peak)} MiB, {course.peak / capacity:.1%} of {_mib(capacity)} MiB"
        ),
        *notes,
        f"{'phase':<9}{'moment':<10}{'samples':>8}{'mean':>10}{'max':>10}{'min':>10}  MiB",
    ]
    lines += [
        f"{phase:<9}{moment:<10}{running.count:>8}{_mib(running.mean):>10}"
        f"{_mib(running.most):>10}{_mib(running.least):>10}"
        for (phase, moment), running in moments.items()
    ]
    return "\n".join(lines)


def _mib(nbytes: float) -> str:
    return f"{nbytes / _MIB:.1f}"
