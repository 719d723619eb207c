"""Collects named spans, phases and counters as trace events for Chrome and Perfetto."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from types import TracebackType

PHASES = 1 << 30
"""Thread id under which phases are shown. It is higher than any real thread id."""
LIMIT = 1_000_000
"""Largest number of events of a timeline. They take 100 to 200 MB."""

Event = dict[str, Any]


@attrs.define(eq=False)
class TraceSpan:
    """A context manager that records one event, from entry to exit."""

    _timeline: TraceTimeline
    name: str
    category: str
    started: int = 0
    thread: int = 0

    def __enter__(self) -> None:
        self.thread = threading.get_native_id()
        self.started = time.perf_counter_ns()
        self._timeline.begun(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timeline.ended(self)


class TraceTimeline:
    """Records events until `finish`; times are nanoseconds of the Unix epoch."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.dropped = 0
        """Number of events beyond `limit`. These events are not stored."""
        self._limit = limit
        self._open: dict[int, TraceSpan] = {}
        self._phase: TraceSpan | None = None
        self._events: list[tuple[str, str, int, int, int]] = []
        self._counts: list[tuple[str, int, dict[str, float]]] = []
        self._finished = False
        self._epoch = time.time_ns() - time.perf_counter_ns()
        self.started = self._epoch + time.perf_counter_ns()

    def span(self, name: str, category: str) -> TraceSpan:
        """Return a context manager for a span; the thread that enters it is recorded, too."""
        return TraceSpan(self, name, category)

    def begun(self, span: TraceSpan) -> None:
        """Record that a span was entered."""
        self._open[id(span)] = span

    def ended(self, span: TraceSpan) -> None:
        """Record that a span was exited, unless `finish` has ended it."""
        if self._open.pop(id(span), None) is not None:
            self._add(span)

    def phase(self, name: str | None) -> None:
        """End the current phase, and begin the phase `name` if it is not None."""
        if self._phase is not None:
            self._add(self._phase)
        self._phase = None
        if name is not None:
            started = time.perf_counter_ns()
            self._phase = TraceSpan(self, name, "phase", started, PHASES)

    def counter(self, name: str, values: dict[str, float]) -> None:
        """Record the current values of a counter."""
        if not self._finished and len(self._counts) < self._limit:
            self._counts.append((name, time.perf_counter_ns(), values))

    def finish(self) -> None:
        """End all open spans; later events are ignored."""
        self.phase(None)
        for span in reversed(self._open.values()):
            self._add(span)
        self._open.clear()
        self._finished = True

    def _add(self, span: TraceSpan) -> None:
        if self._finished:
            return
        if len(self._events) >= self._limit:
            self.dropped += 1
            return
        length = max(1, time.perf_counter_ns() - span.started)
        self._events.append((span.name, span.category, span.thread, span.started, length))

    def events(self, base: int) -> list[Event]:
        """Return the trace events in order, times in microseconds after `base` (epoch, in ns)."""
        process, offset = os.getpid(), self._epoch - base
        common = {"pid": process, "tid": PHASES}
        events: list[Event] = [
            {"ph": "M", "name": "thread_name", "args": {"name": "phases"}, **common},
            {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": -1}, **common},
        ]
        for name, category, thread, started, length in self._in_order():
            ts = (started + offset) / 1000
            event = {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": length / 1000}
            events.append({**event, "pid": process, "tid": thread})
        for name, at, values in self._counts:
            ts = (at + offset) / 1000
            events.append({"ph": "C", "name": name, "ts": ts, "args": values, **common})
        return events

    def _in_order(self) -> list[tuple[str, str, int, int, int]]:
        """Return the spans sorted by start time; an outer span is before its inner spans."""
        return sorted(self._events, key=lambda event: (event[3], -event[4]))
