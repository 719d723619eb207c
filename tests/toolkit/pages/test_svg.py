"""Scales hold what they must, ticks lie within them, and points land where their values say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neaptide_toolkit.pages.svg import WIDE, Axis, Series, axis, chart, step_axis

FINITE = st.floats(-1e300, 1e300)
KINDS = st.sampled_from(["", "bytes", "seconds"])


def linear(low: float, high: float) -> Axis:
    return Axis(low, high, (low, high), (str(low), str(high)))


@given(FINITE, FINITE, KINDS)
@example(1.0, 5e-324, "")
@example(5e-324, 5e-324, "seconds")
def test_a_scale_holds_its_values_and_its_ticks(one: float, other: float, kind: str) -> None:
    low, high = sorted((one, other))
    scale = axis(low, high, kind=kind)
    slack = 1e-8 * (scale.high - scale.low)
    assert scale.low - slack <= low <= high <= scale.high + slack
    assert 2 <= len(scale.ticks) <= 14
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    assert list(scale.ticks) == sorted(set(scale.ticks))
    assert len(scale.labels) == len(scale.ticks)
    assert 0 <= scale.place(low) <= scale.place(high) <= 1


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_the_steps_fill_their_scale(one: int, other: int) -> None:
    first, last = sorted((one, other))
    scale = step_axis(first, last)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    assert len(set(scale.labels)) == len(scale.ticks) <= 7
    if first < last:
        assert (0, 1) == (scale.place(first), scale.place(last))


@pytest.mark.parametrize(
    ("low", "high", "kind", "labels", "unit"),
    [
        (1.8, 6.1, "", ("1", "2", "3", "4", "5", "6", "7"), ""),
        (0.02, 0.31, "", ("0.0", "0.1", "0.2", "0.3", "0.4"), ""),
        (5.0, 5.0, "", ("2", "3", "4", "5", "6", "7", "8"), ""),
        (0.0, 0.0, "", ("-1.0", "-0.5", "0.0", "0.5", "1.0"), ""),
        (0.001, 900.0, "", ("0.001", "0.01", "0.1", "1", "10", "100", "1000"), ""),
        (0.0, 3 * 2**30, "bytes", ("0", "1", "2", "3"), "GiB"),
        (0.0091, 0.018, "seconds", ("8", "10", "12", "14", "16", "18"), "ms"),
        (0, 61_000, "", ("0", "20k", "40k", "60k", "80k"), ""),
    ],
)
def test_ticks_are_round(
    low: float, high: float, kind: str, labels: tuple[str, ...], unit: str
) -> None:
    scale = axis(low, high, kind=kind)
    assert (labels, unit) == (scale.labels, scale.unit)


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [
        (1, 60, ("20", "40", "60")),
        (1, 1, ("1",)),
        (0, 3, ("0", "1", "2", "3")),
        (1, 1_000_000, ("0.2M", "0.4M", "0.6M", "0.8M", "1.0M")),
        (1, 12_000, ("5k", "10k")),
    ],
)
def test_ticks_of_steps_are_whole(first: int, last: int, labels: tuple[str, ...]) -> None:
    assert labels == step_axis(first, last).labels


@given(st.floats(1e-200, 1e200), st.floats(1e-200, 1e200), st.floats(1e-200, 1e200))
def test_a_higher_value_is_placed_higher(one: float, two: float, three: float) -> None:
    low, middle, high = sorted((one, two, three))
    scale = axis(low, high)
    assert scale.place(low) <= scale.place(middle) <= scale.place(high)


def test_points_land_where_their_values_say() -> None:
    points = [(0, 0.0), (50, 5.0), (100, 10.0)]
    marks = [((25, 2.5), "a quarter")]
    series = Series(label="loss", colour=1, lines=[points], marks=marks)
    drawing = chart("Loss", [series], x=linear(0, 100), y=linear(0, 10), height=200)
    path = re.search(r'<path class="line c1" d="([^"]*)"', drawing)
    assert path is not None
    assert f"M0.0 200.0L{WIDE / 2} 100.0L{WIDE}.0 0.0" == path[1]
    circle = ET.fromstring(drawing).find("circle")
    assert circle is not None
    assert ("25.00%", "150.0") == (circle.get("cx"), circle.get("cy"))
    assert "a quarter" == circle.findtext("title")


def test_a_single_point_is_drawn() -> None:
    series = Series(label="loss", colour=0, lines=[[(1, 2.0)]])
    drawing = chart("Loss", [series], x=step_axis(1, 1), y=axis(2.0, 2.0), height=100)
    assert f"M{WIDE / 2} 50.0L{WIDE / 2} 50.0" in drawing


def test_whatever_a_label_says_the_drawing_is_well_formed() -> None:
    hostile = "</title><script>alert(1)</script>\"'&"
    series = Series(label=hostile, colour=0, lines=[[(1, 2.0)]], marks=[((1, 2.0), hostile)])
    drawing = chart(
        hostile,
        [series],
        x=step_axis(1, 1),
        y=axis(2.0, 2.0),
        bands=[(hostile, 1, 1, 0)],
        describe=hostile,
    )
    assert "<script" not in drawing
    assert hostile == ET.fromstring(drawing).findtext("title")
