"""Labels of a chart never touch, at any width of the page; every value has a tooltip."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neaptide_toolkit.pages import labels
from neaptide_toolkit.pages.hover import STRIPS
from neaptide_toolkit.pages.svg import Series, axis, chart, step_axis

Box = tuple[float, float, float, float]
"""Left, right, top, bottom, in pixels from the upper left corner of the drawing."""

LINE = 14


def drawing(
    points: list[tuple[int, float]], height: int, kind: str = "", *, small: bool = False
) -> str:
    steps, values = zip(*points, strict=True)
    return chart(
        "Loss",
        [Series(label="loss", colour=1, lines=[points])],
        x=step_axis(min(steps), max(steps)),
        y=axis(min(values), max(values), kind=kind),
        height=height,
        small=small,
    )


def boxes(svg: str, plot: float, *, narrow: bool) -> dict[str, Box]:
    """Return the box of each label that is shown; `plot` is the room for drawing and indent."""
    root = ET.fromstring(svg)
    indent = re.search(r"margin-left: (\d+)px", root.get("style") or "")
    width = plot - (int(indent[1]) if indent else 0)
    found = {}
    for number, text in enumerate(root.iter("text")):
        kind, said = (text.get("class") or "").split(), text.text or ""
        if "more" in kind and narrow:
            continue
        wide, y = 7.2 * len(said), float(text.get("y") or 0)
        if kind[0] == "y":
            right = float(text.get("x") or 0)
            found[f"{number} {said}"] = (right - wide, right, y - LINE / 2, y + LINE / 2)
            continue
        place = float((text.get("x") or "").removesuffix("%")) / 100
        left = place * width - {"start": 0, "middle": wide / 2, "end": wide}[kind[1]]
        found[f"{number} {said}"] = (left, left + wide, y - LINE + 3, y + 3)
    return found


def touch(one: Box, other: Box) -> bool:
    slack = 0.11  # what is drawn is rounded
    across = one[0] < other[1] - slack and other[0] < one[1] - slack
    return across and one[2] < other[3] - slack and other[2] < one[3] - slack


POINTS = st.lists(
    st.tuples(st.integers(0, 10**12), st.floats(-1e300, 1e300)), min_size=1, max_size=4
)


@given(
    POINTS,
    st.sampled_from([100, 130, 200, 220, 240, 300, 320]),
    st.sampled_from(["", "bytes", "seconds"]),
    st.floats(190, 1200),
    st.booleans(),
)
@example([(1, 1e15), (999_999, 1e15 + 2)], 130, "", 190.0, True)
@example([(100_000, 0.5), (100_007, 7.5)], 130, "", 190.0, False)
@example([(999_999_999, 0.5), (1_000_000_003, 7.5)], 130, "", 190.0, False)
def test_no_two_labels_of_a_chart_touch(
    points: list[tuple[int, float]],
    height: int,
    kind: str,
    plot: float,
    small: bool,  # noqa: FBT001 - given by hypothesis
) -> None:
    shown = boxes(drawing(points, height, kind, small=small), plot, narrow=plot < labels.BROAD)
    for one, other in combinations(shown, 2):
        assert not touch(shown[one], shown[other]), (one, other)
    # The room left of the drawing holds the labels of the y axis.
    svg = drawing(points, height, kind, small=small)
    indent = re.search(r"margin-left: (\d+)px", svg)
    room = labels.MARGIN + (int(indent[1]) if indent else 0)
    assert all(-8 - room <= left for left, *_ in shown.values())


@given(
    st.floats(1e-5, 1e6),
    st.lists(st.sampled_from([0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 150.0]), min_size=1, max_size=5),
    st.floats(-5, 5),
    st.sampled_from(["", "seconds"]),
    st.floats(190, 1200),
)
def test_no_two_labels_of_a_comparisons_chart_touch(
    base: float, shares: list[float], loss: float, kind: str, plot: float
) -> None:
    x = axis(base * min(shares), base * max(shares), kind=kind)
    points = [(base * share, loss - 0.01 * share) for share in shares]
    y = axis(min(value for _, value in points), loss)
    unit = x.unit if kind else "passes"
    lines = [Series(label="candidate", colour=1, lines=[points])]
    svg = chart("Loss", lines, x=x, y=y, height=300, unit=unit)
    shown = boxes(svg, plot, narrow=plot < labels.BROAD)
    for one, other in combinations(shown, 2):
        assert not touch(shown[one], shown[other]), (one, other)


def test_a_small_chart_shows_fewer_labels_than_ticks() -> None:
    points = [(100_001, 2.0), (100_011, 8.0)]
    svg = drawing(points, 30)
    assert (4, 2 + 1) == (svg.count('class="grid"'), svg.count('class="y"'))  # 1: the word `step`
    assert ' more"' in drawing(points, 200)
    assert ' more"' not in drawing(points, 200, small=True)


def tooltips(svg: str) -> list[str]:
    """Return the tooltips of the strips."""
    strips = [one for one in ET.fromstring(svg).iter("rect") if one.get("class") == "hover"]
    return [strip.findtext("title") or "" for strip in strips]


def test_the_pointer_finds_every_value() -> None:
    series = [
        Series(label="full", colour=1, lines=[[(1, 2.5), (2, 2.25)]]),
        Series(label="validation", colour=5, marks=[((2, 3.0), "")]),
    ]
    svg = chart("Loss", series, x=step_axis(1, 2), y=axis(2.0, 3.0), say="{:.4f}".format)
    assert ["step 1\nfull: 2.5000", "step 2\nfull: 2.2500\nvalidation: 3.0000"] == tooltips(svg)


MANY = st.lists(st.tuples(st.integers(1, 9999), st.floats(0, 9)), min_size=200, max_size=900)


@given(POINTS | MANY)
def test_the_strips_cover_the_chart_and_hold_the_extremes(points: list[tuple[int, float]]) -> None:
    svg = drawing(points, 200)
    strips = [one for one in ET.fromstring(svg).iter("rect") if one.get("class") == "hover"]
    assert 1 <= len(strips) <= STRIPS
    last = [float((strips[-1].get(name) or "")[:-1]) for name in ("x", "width")]
    assert "0.00%" == strips[0].get("x")
    assert sum(last) == pytest.approx(100, abs=0.02)
    said = "\n".join(tooltips(svg))
    for value in (min(v for _, v in points), max(v for _, v in points)):
        assert f"{value:.6g}" in said
