"""Make a run's text safe to display, and format numbers for people."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from neaptide.io.units import duration, size
from neaptide.text import visible
from neaptide_toolkit.pages.colours import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMES = ((1, "s"), (1e3, "ms"), (1e6, "us"))

_LARGEST = 1e300  # keeps differences of two values finite
_COLOURS = {
    "finished": "32",
    "running": "34",
    "closed": "32",
    "stopped": "33",
    "interrupted": "33",
    "failed": "31",
    "diverged": "31",
    **{name: str(colour.ansi) for name, colour in COLOURS.items()},
}
_NAME = 60
LONGEST = 300
"""Largest number of characters kept of one text."""


def clean(value: Any, longest: int = LONGEST) -> str:
    """Return `value` as printable text of at most `longest` characters.

    Characters that a terminal or a browser would interpret are escaped: control characters, marks
    of text direction, lone surrogates.
    """
    text = visible(str(value)[: longest + 1], kept="")
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


@lru_cache(maxsize=4096)
def name(text: str) -> str:
    """Return a name as safe text.

    The text is cached, because the rows of a run repeat a few names.
    """
    return clean(text, _NAME)


def scalar(value: Any) -> Any:
    """Return None, booleans and numbers unchanged; pass text and too large numbers to `clean`.

    `json` reads NaN, Infinity and integers of thousands of digits. Number formats such as `:.4f`
    do not accept all of these values.
    """
    if value is None or isinstance(value, bool) or _is_number(value):
        return value
    return clean(hex(value) if isinstance(value, int) else value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and drawable(value)


def safe(value: Any, depth: int = 6) -> Any:
    """Return a JSON value in which every scalar is safe. Values nested too deep are left out."""
    if isinstance(value, dict):
        return {clean(key): safe(item, depth - 1) for key, item in value.items() if depth}
    if isinstance(value, list):
        return [safe(item, depth - 1) for item in value if depth]
    return scalar(value)


def figure(value: Any) -> str:
    """Format a number of unknown unit, with up to four decimals."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return clean(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):  # noqa: PLR2004 - beyond it floats skip integers
        return f"{value:,.0f}" if abs(value) < 10**15 else f"{value:.4g}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.4f}" if 1e-2 <= abs(value) < 1e6 else f"{value:.4g}"  # noqa: PLR2004 - as above


def in_unit(value: float | None, unit: str) -> str:
    """Format a value in `unit`: `bytes`, `seconds`, or `` for a plain number."""
    if value is None:
        return "-"
    if unit == "bytes":
        return size(value) if value >= 0 else f"-{size(-value)}"
    if unit == "seconds" and value >= 0:
        rounded = float(f"{value:.3g}")  # the digits shown decide the unit: 59.97 s is 1:00
        value = rounded if rounded <= 60 else value  # noqa: PLR2004 - a minute
        if value >= 60 or not value:  # noqa: PLR2004 - a minute
            return duration(value)
        factor, unit = next((pair for pair in _TIMES if value * pair[0] >= 1), _TIMES[-1])
        scaled = value * factor
        return f"{scaled:.{max(0, 2 - int(math.log10(max(scaled, 1))))}f} {unit}"
    return figure(value)


def counted(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 jump`, `2 jumps`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def drawable(value: float) -> bool:
    """Return whether a value can be drawn on a chart: neither NaN nor too large."""
    return -_LARGEST <= value <= _LARGEST


def aligned(rows: Sequence[Sequence[Any]], *, colour: bool = False) -> str:
    """Return rows in aligned columns, with numbers aligned right; `colour` colours the phases."""
    cells = [[c if isinstance(c, str) else figure(c) for c in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(c[:1].isdigit() or c[:1] == "-" for c in column[1:]) for column in columns]
    right[0] = False
    lines = []
    for row in cells:
        padded = [
            paint(cell, cell, colour=colour) + " " * (width - len(cell))
            if not to_right
            else cell.rjust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def bold(text: str, *, colour: bool) -> str:
    """Return `text`, in bold if `colour` is true."""
    return f"\x1b[1m{text}\x1b[0m" if colour else text


def paint(text: str, kind: str, *, colour: bool) -> str:
    """Return `text`, in the colour of the phase or status `kind` if `colour` is true."""
    code = _COLOURS.get(kind)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
