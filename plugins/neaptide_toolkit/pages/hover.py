"""The values under the pointer of a chart: strips with a native tooltip, without a script."""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

STRIPS = 120
"""Largest number of strips of a chart. A strip of several points tells their range."""


def strips(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    place: Callable[[float], float],
    height: int,
    say: Callable[[float], str],
    unit: str,
) -> list[str]:
    """Return transparent strips of the full height; the tooltip of each tells all values in it.

    `series` are labels with points. `place` maps an x value to a share of the axis, `say` formats a
    y value, and `unit` is the word for the x axis.
    """
    steps = sorted({step for _, points in series for step, _ in points})
    size = max(1, math.ceil(len(steps) / STRIPS))
    groups = [steps[first : first + size] for first in range(0, len(steps), size)]
    if not groups:
        return []
    numbers = {step: number for number, group in enumerate(groups) for step in group}
    said: list[dict[str, list[float]]] = [{} for _ in groups]
    for label, points in series:
        for step, value in points:
            said[numbers[step]].setdefault(label, []).append(value)
    inner = [place((left[-1] + right[0]) / 2) for left, right in pairwise(groups)]
    edges = [0.0, *inner, 1.0]
    return [
        f'<rect class="hover" x="{100 * left:.2f}%" width="{100 * (right - left):.2f}%" y="0" '
        f'height="{height}"><title>{escape(_text(group, values, say, unit))}</title></rect>'
        for group, values, (left, right) in zip(groups, said, pairwise(edges), strict=True)
    ]


def _text(
    steps: Sequence[float],
    values: dict[str, list[float]],
    say: Callable[[float], str],
    unit: str,
) -> str:
    first, last = (f"{step:,.10g}" for step in (steps[0], steps[-1]))
    where = f"{unit} {first}" if first == last else f"{unit} {first} to {last}"
    return "\n".join(
        [where, *(f"{label}: {_range(found, say)}" for label, found in values.items())]
    )


def _range(values: Iterable[float], say: Callable[[float], str]) -> str:
    low, high = (say(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
