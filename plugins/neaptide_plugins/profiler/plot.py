"""Plots memory.csv: bytes by step, with the phases as coloured bands."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.colours import COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

POINTS = 2000
"""Largest number of points in a line of the plot: more than a screen can show."""
_LINES = {
    "rss_bytes": "RSS (host)",
    "rss_peak_bytes": "RSS, high-water mark",
    "allocated_bytes": "allocated",
    "peak_bytes": "allocated, high-water mark",
    "reserved_bytes": "reserved",
    "nvml_bytes": "all processes (NVML)",
}
_STRANGE = "tab:purple"

Row = dict[str, str]


def problem(*, has_rows: bool) -> str | None:
    """Return the reason why nothing can be plotted, or None.

    `has_rows` states whether memory.csv is written.
    """
    if find_spec("matplotlib") is None:
        return 'matplotlib is not installed: pip install "neaptide[plots]"'
    return None if has_rows else "the plot needs memory.csv: set csv = true as well"


def draw(source: str, target: IO[bytes]) -> None:
    """Plot the samples in `source`, the text of a memory.csv, as a PNG that is written to `target`.

    matplotlib's global state does not change: pyplot gets no figure, and no backend is chosen.
    """
    # Imported here because plots are rare and matplotlib takes half a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see above
    from matplotlib.figure import Figure  # noqa: PLC0415 - see above

    rows = list(csv.DictReader(source.splitlines()))
    lines = {
        label: points
        for column, label in _LINES.items()
        if (points := thinned(_highest(rows, column), POINTS))
    }
    highest = max(value for points in lines.values() for _, value in points)
    unit, name = (2**30, "GiB") if highest >= 2**30 else (2**20, "MiB")
    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for label, points in lines.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, [value / unit for value in values], ".-", markersize=2, label=label)
    named: set[str] = set()
    for phase, start, end in bands(rows):
        label = "_nolegend_" if phase in named else phase
        named.add(phase)
        colour = COLOURS[phase].light if phase in COLOURS else _STRANGE
        axes.axvspan(start, end, color=colour, alpha=0.15, lw=0, label=label)
    axes.set(xlabel="step", ylabel=name, title="Memory, highest sample of each step")
    axes.margins(x=0)
    axes.set_ylim(0, 1.08 * highest / unit)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(target, dpi=120, format="png")


def _highest(rows: Iterable[Row], column: str) -> list[tuple[int, int]]:
    """Return, for each step that has values, the highest value."""
    by_step: dict[int, int] = {}
    for row in rows:
        if row[column]:
            step, value = int(row["step"]), int(row[column])
            by_step[step] = max(value, by_step.get(step, 0))
    return sorted(by_step.items())


def thinned(points: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return at most `most` points: the highest point of each interval, so that no peak is lost."""
    size = -(-len(points) // most) or 1
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return [max(stretch, key=lambda point: point[1]) for stretch in stretches]


def bands(rows: Iterable[Row]) -> Iterator[tuple[str, float, float]]:
    """Yield phase, start and end of each band.

    A band begins half a step before its first step and ends half a step after its last step. A
    jump (predicted update) is not a separate step. The band of a jump is the half step before the
    next update.
    """
    steps = ((int(row["step"]), row["phase"]) for row in rows)
    for phase, stretch in groupby(steps, key=lambda pair: pair[1]):
        numbers = [step for step, _ in stretch]
        if phase == "predict":
            yield phase, numbers[0] - 0.5, float(numbers[-1])
        else:
            yield phase, numbers[0] - 0.5, numbers[-1] + 0.5
