"""Where the engines of a traced step work, and for whom the busiest one waits."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scaling.simulation import Traced

ENGINES = ("to_device", "compute", "to_host")
WIDTH = 100
"""Characters of a chart."""
LETTERS = {
    "fetch state": "s", "fetch": "w", "inputs return": "i", "inputs leave": "i",
    "write back state": "s", "write back": "w", "forward": "F", "backward": "B", "update": "U",
    "head, loss and embedding": "h",
}  # fmt: skip
"""A letter for each kind of work; the first that the work's name begins with counts."""
REST = "head, loss and embedding"
_SAME = 1e-9
_SHORT = 2e-5
"""A gap that is this short is the time of a launch."""


@attrs.frozen
class Span:
    """A launch in the step that is looked at."""

    engine: str
    start: float
    end: float
    kind: str
    """A key of `LETTERS`."""


@attrs.frozen
class Steady:
    """A steady step: from the end of the computation of a step to the end of the next one's.

    Attributes:
        seconds: of the step.
        busy: seconds of work, by engine.
        bound: the engine with the most.
        waits: seconds in which this engine waits: what begins then, and what ends then.
        launches: on the compute engine.
        chart: a line for each engine.
    """

    seconds: float
    busy: dict[str, float]
    bound: str
    waits: dict[str, float]
    launches: int
    chart: dict[str, str]

    @property
    def share(self) -> float:
        """Return the share of the step in which the busiest engine works."""
        return self.busy[self.bound] / self.seconds


def steady(traced: Traced) -> Steady:
    """Return the last step of a trace."""
    spans = list(_spans(traced))
    start, end = (
        max(span.end for span in spans[:last] if span.engine == "compute")
        for last in traced.ends[-2:]
    )
    inside = [span for span in spans if span.end > start and span.start < end]
    busy = {
        engine: sum(
            min(span.end, end) - max(span.start, start) for span in inside if span.engine == engine
        )
        for engine in ENGINES
    }
    bound = max(busy, key=lambda engine: busy[engine])
    return Steady(
        end - start,
        busy,
        bound,
        _waits(spans, bound, start, end),
        sum(span.engine == "compute" and start <= span.start < end for span in inside),
        {engine: _line(inside, engine, start, end) for engine in ENGINES},
    )


def _spans(traced: Traced) -> Iterator[Span]:
    kinds = [REST] * len(traced.operations)
    for first, last, what in traced.labels:  # inner works come later
        kind = next(kind for kind in LETTERS if what.startswith(kind))
        kinds[max(0, first) : max(0, last)] = [kind] * (max(0, last) - max(0, first))
    for (_, _, engine, start, end, _), kind in zip(traced.operations, kinds, strict=True):
        yield Span(engine, start, end, kind)


def _waits(spans: Sequence[Span], bound: str, start: float, end: float) -> dict[str, float]:
    """Return the seconds of each kind of gap on an engine, the longest first."""
    others = sorted((span.end, span.kind) for span in spans if span.engine != bound)
    found: dict[str, float] = defaultdict(float)
    last = start
    for span in sorted((one for one in spans if one.engine == bound), key=lambda one: one.start):
        if span.end <= start or span.start >= end:
            continue
        if span.start > last + _SAME:
            place = bisect_left(others, (span.start - _SAME, ""))
            whom = "a launch" if span.start - last < _SHORT else "the host"
            if place < len(others) and others[place][0] <= span.start + _SAME:
                whom = others[place][1]
            found[f"{span.kind} after {whom}"] += span.start - last
        last = max(last, span.end)
    if end > last:
        found["the step's end"] += end - last
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _line(spans: Sequence[Span], engine: str, start: float, end: float) -> str:
    """Return a character for each part of the step: the letter of its longest work, or a dot."""
    part = (end - start) / WIDTH
    worked: list[dict[str, float]] = [defaultdict(float) for _ in range(WIDTH)]
    for span in spans:
        if span.engine != engine:
            continue
        place = max(0, int((span.start - start) / part))
        while place < WIDTH and start + place * part < span.end:
            low, high = start + place * part, start + (place + 1) * part
            worked[place][span.kind] += max(0.0, min(span.end, high) - max(span.start, low))
            place += 1
    return "".join(_letter(one, part) for one in worked)


def _letter(worked: dict[str, float], part: float) -> str:
    if sum(worked.values()) < part / 2:
        return "."
    return LETTERS[max(worked, key=lambda kind: worked[kind])]


def as_json(found: Steady, traced: Traced, tokens: int) -> dict[str, Any]:
    """Return a step as a tree for JSON."""
    return {
        "seconds": found.seconds,
        "tokens_per_s": tokens / found.seconds,
        "bound": found.bound,
        "share": found.share,
        "busy": found.busy,
        "waits": found.waits,
        "launches": found.launches,
        "allocated": traced.peaks[0],
        "reserved": traced.peaks[1],
        "races": traced.races,
        "chart": found.chart,
    }
