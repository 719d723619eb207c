"""The charts of a run: loss, memory, time and metrics over steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from neaptide.api.phases import PHASES
from neaptide_toolkit.pages.html import figure_of, legend
from neaptide_toolkit.pages.svg import Axis, Series, axis, chart, step_axis
from neaptide_toolkit.pages.text import counted, figure, in_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .reading import RunFacts
    from .series import StepSeries, Track

_VALIDATION, _BANDS, _MARKS = 5, 120, 80


def phase_colours(names: Iterable[str]) -> dict[str, int]:
    """Return a colour for each phase. The core's four phases come before phases of plugins."""
    strangers = (name for name in dict.fromkeys(names) if name not in PHASES)
    return {name: number for number, name in enumerate((*PHASES, *strangers))}


def loss_chart(run: RunFacts) -> str:
    """Return the chart of training loss, validation loss and jumps; empty if there is no loss."""
    steps, colours = run.steps, _colours(run)
    series = [
        *phase_series(steps.loss, colours),
        dotted("validation", _VALIDATION, run.metrics.validation),
        _jumps("accepted", colours["predict"], steps.jumped),
        _jumps("refused", colours["predict"], run.events.refused),
    ]
    unusual = sorted({*steps.loss.unusual, *run.metrics.validation.unusual})
    return drawn("Loss by phase", series, run, unusual=unusual, height=300)


def memory_charts(run: RunFacts) -> list[str]:
    """Return a chart per source and tier, such as device or host.

    The sources are the plugins' files, or steps.csv if there are no such files.
    """
    sources = run.memory[1:] or run.memory
    return [
        drawn(
            f"Memory: {tier}",
            phase_series(track, _colours(run)),
            run,
            kind="bytes",
            unusual=track.unusual,
            note=table.source,
        )
        for table in sources
        for tier, track in table.tracks.items()
    ]


def norm_chart(run: RunFacts) -> str:
    """Return the chart of gradient norms before clipping; empty if none is recorded."""
    track = run.steps.grad_norm
    series = phase_series(track, _colours(run))
    return drawn("Gradient norm", series, run, unusual=track.unusual, height=200)


def tokens_chart(run: RunFacts) -> str:
    """Return the chart of tokens per second; empty if batches have no tokens."""
    series = phase_series(run.metrics.tokens, _colours(run))
    return drawn("Tokens per second", series, run, height=200)


def seconds_chart(run: RunFacts) -> str:
    """Return the chart of seconds per step."""
    return drawn(
        "Time of a step",
        phase_series(run.steps.seconds, _colours(run)),
        run,
        kind="seconds",
        unusual=run.steps.seconds.unusual,
        height=200,
    )


def metric_chart(name: str, track: Track, run: RunFacts) -> str:
    """Return one small chart of a metric."""
    lines = track.lines()
    series = [Series(label=name, colour=1, lines=lines)]
    return drawn(name, series, run, unusual=track.unusual, height=130, small=True)


def overlaid(
    title: str, series: Sequence[Series], runs: Sequence[RunFacts], *, kind: str = "", height: int
) -> str:
    """Return a chart of several runs' series over the steps of all runs; empty without values."""
    first = min((run.steps.first for run in runs if run.steps.last), default=0)
    steps = (first, max(run.steps.last for run in runs))
    scales = scales_of(series, kind=kind, steps=steps if steps[1] else None)
    if scales is None:
        return ""
    x, y = scales
    say = partial(in_unit, unit=kind)
    drawing = chart(title, series, x=x, y=y, height=height, describe=_described(series), say=say)
    return figure_of(title, drawing, legend(series), unit=_unit_note(y))


def drawn(
    title: str,
    series: Sequence[Series],
    run: RunFacts,
    *,
    kind: str = "",
    height: int = 220,
    unusual: Sequence[int] = (),
    note: str = "",
    small: bool = False,
) -> str:
    """Return a chart of a run's series over all its steps; empty without values.

    A small chart has neither a legend nor the phases behind the lines.
    """
    steps = run.steps
    scales = scales_of(series, kind=kind, steps=(steps.first, steps.last))
    if scales is None:
        return ""
    x, y = scales
    drawing = chart(
        title,
        series,
        x=x,
        y=y,
        height=height,
        bands=() if small else _bands(run),
        unusual=unusual,
        describe=_described(series),
        say=partial(in_unit, unit=kind),
        small=small,
    )
    key = "" if small else legend(series)
    return figure_of(title, drawing, key, unit=_unit_note(y), note=note)


def scales_of(
    series: Sequence[Series], *, kind: str = "", steps: tuple[int, int] | None = None
) -> tuple[Axis, Axis] | None:
    """Return scales that include all points and the given steps; None if there are no points."""
    points = [point for one in series for point in one.points()]
    if not points:
        return None
    across = [step for step, _ in points] + list(steps or ())
    down = [value for _, value in points]
    return step_axis(int(min(across)), int(max(across))), axis(min(down), max(down), kind=kind)


def phase_series(track: Track, colours: dict[str, int]) -> list[Series]:
    """Return a series for every phase of `track` (one quantity over steps)."""
    return [
        Series(label=phase, colour=colours.get(phase, len(colours)), lines=course.lines())
        for phase, course in track.courses.items()
    ]


def dotted(label: str, colour: int, track: Track) -> Series:
    """Return a track as a line. If the points are few, each point has a mark."""
    points = track.points() if len(track.points()) <= _MARKS else []
    marks = [(point, f"{label}, step {point[0]:,}: {figure(point[1])}") for point in points]
    return Series(label=label, colour=colour, lines=track.lines(), marks=marks)


def _jumps(verdict: str, colour: int, course: StepSeries) -> Series:
    if len(course.points()) > _MARKS:  # marks would hide the line; the table lists the jumps
        return Series(label=f"jump {verdict}", colour=colour)
    which = "after" if verdict == "accepted" else "before"
    marks = [
        ((step, value), f"step {step:,}: jump {verdict}, loss {which} it {figure(value)}")
        for step, value in course.points()
    ]
    return Series(label=f"jump {verdict}", colour=colour, marks=marks, shape=verdict)


def _colours(run: RunFacts) -> dict[str, int]:
    found = phase_colours(run.steps.loss.courses)
    return phase_colours([*found, *(p for t in run.memory for _, p, _ in t.groups)])


def _bands(run: RunFacts) -> list[tuple[str, int, int, int]]:
    stretches = run.steps.stretches.found or []
    if len(stretches) > _BANDS:
        return []
    colours = _colours(run)
    return [
        (f"{phase}, steps {first:,} to {last:,}", max(first - 1, run.steps.first), last, colour)
        for phase, first, last in stretches
        if (colour := colours.get(phase, len(colours))) is not None
    ]


def _described(series: Sequence[Series]) -> str:
    parts = []
    for one in series:
        values = [value for _, value in one.points()]
        if values:
            parts.append(
                f"{one.label}: {counted(len(values), 'point')} from {figure(min(values))} "
                f"to {figure(max(values))}"
            )
    return "; ".join(parts)


def _unit_note(y: Axis) -> str:
    return "log scale" if y.log else y.unit


def metric_range(track: Track) -> str:
    """Return the range of a metric as text."""
    whole = track.whole
    if whole.low == whole.high:
        return figure(whole.low)
    last = figure(track.last[1]) if track.last else "-"
    return f"{figure(whole.low)} to {figure(whole.high)}, last {last}"
