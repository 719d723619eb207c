"""Line charts in SVG that stretch to the page's width; text and marks keep their size and shape."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import attrs

from neaptide.text import one_line

from . import labels
from .hover import strips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Point = tuple[float, float]
"""An x value, such as a step, and a y value."""

WIDE = 1000
"""Width of the inner drawing in SVG units. The browser stretches the drawing to the page's
width."""
_COLOURS = 10
_RATIO = 100  # above this ratio of largest to smallest value the scale is logarithmic
_SMALLEST = 1e-290  # powers of ten below this are too inexact for a scale
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SUFFIXES = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e4, "k"))
_SHAPES = {
    "accepted": '<path d="M0-6 6 0 0 6-6 0Z"/>',
    "refused": '<path d="M-4.5-4.5 4.5 4.5M-4.5 4.5 4.5-4.5"/>',
}


@attrs.frozen
class Axis:
    """A scale with ticks. It maps a value to a share of the axis, from 0 to 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    unit: str = ""
    log: bool = False

    __repr__ = one_line

    def place(self, value: float) -> float:
        """Return the share of a value: 0 at the low end, 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high = math.log10(low), math.log10(high)
            value = math.log10(max(value, self.low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@attrs.frozen(kw_only=True)
class Series:
    """Lines and marks of one colour, with one entry in the legend."""

    label: str
    colour: int
    lines: Sequence[Sequence[Point]] = ()
    marks: Sequence[tuple[Point, str]] = ()
    """Points, each with its tooltip."""
    shape: str = "dot"
    """Shape of the marks: `dot`, `accepted` or `refused`."""

    __repr__ = one_line

    def points(self) -> Iterable[Point]:
        """Return the points of all lines and marks."""
        for line in self.lines:
            yield from line
        for point, _ in self.marks:
            yield point


def axis(low: float, high: float, *, kind: str = "", count: int = 5) -> Axis:
    """Return a scale that contains `low` and `high` and ends at round numbers.

    Args:
        low: the least value.
        high: the largest value.
        kind: `bytes`, `seconds`, or `` for plain numbers.
        count: approximate number of ticks.
    """
    factor, unit = _unit(max(abs(low), abs(high)), kind)
    if low > _SMALLEST and high / low > _RATIO and not kind:
        return _log_axis(low, high)
    low, high = _widened(low / factor, high / factor)
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if 0 <= first * step < 0.15 * (last - first) * step:  # begin at zero
        first = 0
    ticks = [number * step for number in range(first, last + 1)]
    labels = tick_labels(ticks, step)
    return Axis(
        ticks[0] * factor, ticks[-1] * factor, tuple(t * factor for t in ticks), labels, unit
    )


def step_axis(first: int, last: int) -> Axis:
    """Return the scale of the steps, exactly from `first` to `last`, with integers as ticks."""
    if first >= last:
        return Axis(first - 1, first + 1, (first,), (f"{first:,}",))
    step = max(1.0, _round_step((last - first) / 5))
    low, high = math.ceil(first / step), math.floor(last / step)
    ticks = [number * step for number in range(low, high + 1)]
    return Axis(first, last, tuple(ticks), tick_labels(ticks, step))


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / 6)
    powers = range(first, last + 1, every)
    last = max(last, powers[-1])
    ticks = tuple(10.0**power for power in powers)
    labels = tuple(f"{t:g}" for t in ticks)
    return Axis(10.0**first, 10.0**last, ticks, labels, log=True)


def _unit(largest: float, kind: str) -> tuple[float, str]:
    if kind == "bytes":
        power = min(int(math.log2(max(largest, 1))) // 10, len(_BINARY) - 1)
        return float(1024**power), _BINARY[power]
    if kind == "seconds":
        return next((pair for pair in _TIMES if largest >= pair[0]), _TIMES[-1])
    return 1.0, ""


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that is not empty; if `low` equals `high`, this value is in the middle."""
    if high - low > 1e-9 * max(abs(low), abs(high), _SMALLEST):
        return low, high
    around = abs(low) / 2 if abs(low) > _SMALLEST else 1.0
    return low - around, high + around


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))


def tick_labels(ticks: Sequence[float], step: float) -> tuple[str, ...]:
    """Return the shortest labels that distinguish all ticks."""
    largest = max(map(abs, ticks), default=0.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if largest >= 1e15 or decimals > 6:  # noqa: PLR2004 - too long in full
        digits = max(0, math.floor(math.log10(largest or 1)) - math.floor(math.log10(step)))
        return tuple(f"{tick:.{min(digits, 15)}e}" for tick in ticks)
    for scale, least, letter in _SUFFIXES:
        if largest >= least and step >= scale / 10:
            places = 0 if step >= scale else 1
            return tuple(f"{t / scale:.{places}f}{letter}" if t else "0" for t in ticks)
    return tuple(f"{tick:,.{decimals}f}" for tick in ticks)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    height: int = 260,
    bands: Sequence[tuple[str, int, int, int]] = (),
    unusual: Sequence[int] = (),
    describe: str = "",
    unit: str = "step",
    say: Callable[[float], str] = "{:.6g}".format,
    small: bool = False,
) -> str:
    """Return one chart as an `svg` element.

    Args:
        title: the chart's title, for screen readers and as a tooltip.
        series: drawn in this order.
        x: the scale of the steps.
        y: the scale of the values.
        height: in CSS pixels; the chart is as wide as the page.
        bands: ranges of the x axis as (label, first, last, colour), drawn behind everything else.
        unusual: steps whose value is not finite; they are marked at the upper edge.
        describe: a longer description for screen readers.
        unit: unit of the x axis, one short word.
        say: formats a value for the tooltips.
        small: the chart stays narrow on a wide page, too.
    """

    def across(step: float) -> str:
        return f"{100 * x.place(step):.2f}%"

    def down(value: float) -> str:
        return f"{height * (1 - y.place(value)):.1f}"

    label = escape(f"{title}. {describe}".strip())
    indent = math.ceil(max(0.0, *map(labels.width_of, y.labels)) - labels.MARGIN)
    shifted = f' style="margin-left: {indent}px; width: calc(100% - {indent}px)"'
    more = f' aria-label="{label}"{shifted if indent > 0 else ""}'
    parts = [
        f'<svg class="chart" role="img" width="100%" height="{height}"{more}>',
        f"<title>{escape(title)}</title>",
    ]
    for text, first, last, colour in bands:
        wide = 100 * (x.place(last) - x.place(first))
        parts.append(
            f'<rect class="band c{colour % _COLOURS}" x="{across(first)}" y="0" '
            f'width="{wide:.2f}%" height="{height}"><title>{escape(text)}</title></rect>'
        )
    parts += _y_grid(y, down, height) + _x_grid(x, across, height, max(0, indent), small=small)
    parts.append(f'<text class="y" x="-8" y="{height + 14}">{escape(unit)}</text>')
    parts.append(
        f'<svg width="100%" height="{height}" viewBox="0 0 {WIDE} {height}" '
        f'preserveAspectRatio="none">'
    )
    for one in series:
        path = _path(one.lines, x, y, height)
        if path:
            parts.append(
                f'<path class="line c{one.colour % _COLOURS}" d="{path}">'
                f"<title>{escape(one.label)}</title></path>"
            )
    named = [(one.label, list(one.points())) for one in series]
    parts += ["</svg>", *strips(named, x.place, height, say, unit)]
    for one in series:
        for (step, value), text in one.marks:
            parts.append(_mark(one, across(step), down(value), text))
    parts += [
        f'<line class="bad" x1="{across(step)}" x2="{across(step)}" y1="0" y2="10">'
        f"<title>step {step:,}: not finite</title></line>"
        for step in unusual
    ]
    return "".join([*parts, "</svg>"])


def _y_grid(y: Axis, down: Callable[[float], str], height: int) -> list[str]:
    parts = []
    places = [y.place(tick) for tick in y.ticks]
    every = labels.rows(height * (places[1] - places[0]) if len(places) > 1 else height)
    for number, (tick, label) in enumerate(zip(y.ticks, y.labels, strict=True)):
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{down(tick)}" y2="{down(tick)}"/>')
        if number % every == 0:
            parts.append(f'<text class="y" x="-8" y="{down(tick)}">{escape(label)}</text>')
    return parts


def _x_grid(
    x: Axis, across: Callable[[float], str], height: int, indent: int, *, small: bool
) -> list[str]:
    parts = []
    widths = [max(1, width - indent) for width in (labels.NARROW, labels.BROAD)]
    places = [x.place(tick) for tick in x.ticks]
    anchors, narrow, broad = labels.columns(x.labels, places, widths[0], broad=widths[1])
    for number, (tick, label) in enumerate(zip(x.ticks, x.labels, strict=True)):
        at = across(tick)
        parts.append(f'<line class="tick" x1="{at}" x2="{at}" y1="{height}" y2="{height + 5}"/>')
        if number in (narrow if small else broad):
            more = "" if number in narrow else " more"
            parts.append(
                f'<text class="x {anchors[number]}{more}" x="{at}" y="{height + 18}">'
                f"{escape(label)}</text>"
            )
    parts.append(f'<line class="base" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
    return parts


def _path(lines: Sequence[Sequence[Point]], x: Axis, y: Axis, height: int) -> str:
    found = []
    for line in lines:
        places = [
            f"{WIDE * x.place(step):.1f} {height * (1 - y.place(value)):.1f}"
            for step, value in line
        ]
        # A single point shows as a dot: a line of length zero with round ends.
        found.append("M" + "L".join(places if len(places) > 1 else places * 2))
    return "".join(found)


def _mark(series: Series, across: str, down: str, text: str) -> str:
    classes = f"mark {series.shape} c{series.colour % _COLOURS}"
    inner = f"<title>{escape(text)}</title>"
    if series.shape == "dot":
        return f'<circle class="{classes}" cx="{across}" cy="{down}" r="3.5">{inner}</circle>'
    return (
        f'<svg class="{classes}" x="{across}" y="{down}" overflow="visible">'
        f"<g>{inner}{_SHAPES[series.shape]}</g></svg>"
    )
