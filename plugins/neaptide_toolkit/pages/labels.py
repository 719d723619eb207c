"""Which labels of an axis a chart shows, so that no two of them touch at any width of the page.

Widths are in CSS pixels. A chart is as wide as the page lets it be, so a label that has no room on
a narrow page is hidden there by the style sheet.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Anchor = Literal["start", "middle", "end"]

NARROW, BROAD = 190, 450
"""Least width of the drawing on a page of at most 600 pixels or in a grid, and on other pages."""
MARGIN = 56
"""Room for the labels of the y axis, left of the drawing."""
_CHARACTER, _LINE, _GAP = 7.2, 14.0, 8.0  # of digits in 12 pixels, at least as large as drawn


def width_of(text: str) -> float:
    """Return an upper bound of a label's width."""
    return _CHARACTER * len(text)


def rows(distance: float) -> int:
    """Return n: every n-th label of the y axis has room if ticks are `distance` pixels apart."""
    return max(1, math.ceil(_LINE / max(distance, 0.1)))


def extent(text: str, place: float, width: float, anchor: Anchor) -> tuple[float, float]:
    """Return the left and the right end of a label at the share `place` of an axis."""
    wide = width_of(text)
    left = place * width - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return left, left + wide


def columns(
    labels: Sequence[str], places: Sequence[float], width: float, *, broad: float
) -> tuple[list[Anchor], set[int], set[int]]:
    """Return the anchor of each label of the x axis, and the labels that have room.

    The first set is for a drawing of `width` pixels, the second, which holds the first, for one of
    `broad` pixels. A label at an edge is moved inwards.
    """
    anchors = [_anchor(*one, width) for one in zip(labels, places, strict=True)]

    def fits(chosen: Sequence[int], across: float) -> bool:
        ends = [extent(labels[i], places[i], across, anchors[i]) for i in chosen]
        return all(one[1] + _GAP <= other[0] for one, other in pairwise(ends))

    def thinned(chosen: Sequence[int], across: float) -> Sequence[int]:
        steps = range(1, len(chosen) + 1)
        return next((chosen[::n] for n in steps if fits(chosen[::n], across)), ())

    wide = thinned(range(len(labels)), broad)
    return anchors, set(thinned(wide, width)), set(wide)


def _anchor(text: str, place: float, width: float) -> Anchor:
    left, right = extent(text, place, width, "middle")
    if left < 0:
        return "start"
    return "end" if right > width else "middle"
