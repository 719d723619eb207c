"""Series in buckets: bounded, no spike lost, lines that break where a phase was left."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from neaptide_verbs.report.series import OTHER, Ends, Spread, StepSeries, Stretches, Track

VALUES = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 20))
def test_a_course_is_bounded_and_keeps_ends_and_extremes(values: list[float], limit: int) -> None:
    course = StepSeries(limit)
    for step, value in enumerate(values):
        course.add(step, value)
    points = course.points()
    assert len(course.buckets) <= limit
    assert set(points) <= set(enumerate(values))
    assert sorted(points, key=lambda point: point[0]) == points
    kept = [value for _, value in points]
    assert (min(values), max(values)) == (min(kept), max(kept))
    assert ((0, values[0]), (len(values) - 1, values[-1])) == (points[0], points[-1])


@given(st.lists(st.integers(0, 10**15 - 1), min_size=1, max_size=100))
def test_steps_in_any_order_and_far_apart_are_bounded(steps: list[int]) -> None:
    course = StepSeries(8)
    for step in steps:
        course.add(step, float(step))
    assert len(course.buckets) <= 8
    assert {min(steps), max(steps)} <= {step for step, _ in course.points()}


def test_few_points_are_all_there() -> None:
    course = StepSeries()
    values = [math.sin(step) for step in range(300)]
    for step, value in enumerate(values):
        course.add(step, value)
    assert list(enumerate(values)) == course.points()


def test_a_phase_begins_where_the_one_before_ended() -> None:
    track = Track()
    for step in range(1, 11):
        track.add(step, "full" if step <= 4 or step > 7 else "correct", float(step))
    assert [[(4, 4.0), (5, 5.0), (6, 6.0), (7, 7.0)]] == track.courses["correct"].lines()
    first, second = track.courses["full"].lines()
    assert ([1, 2, 3, 4], [7, 8, 9, 10]) == ([s for s, _ in first], [s for s, _ in second])
    assert (7, 3) == (track.spreads["full"].count, track.spreads["correct"].count)
    assert list(range(1, 11)) == [step for step, _ in track.points()]


def test_points_taken_rarely_are_connected() -> None:
    track = Track()
    for step in range(1, 500, 50):
        track.add(step, "full", 0.0)
    assert 1 == len(track.lines())


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    track = Track()
    for step, value in enumerate([1.0, math.nan, math.inf, 3.0, -math.inf, 1e301]):
        track.add(step, "full", value)
    assert (4, [1, 2, 4, 5]) == (track.unusual_count, track.unusual)
    assert {"full": {"count": 2, "mean": 2.0, "min": 1.0, "max": 3.0}} == track.facts()


def test_phases_without_end_are_folded() -> None:
    track = Track()
    for step in range(1000):
        track.add(step, f"phase {step}", 1.0)
    assert len(track.courses) <= 17
    assert 1000 == track.whole.count
    assert 1000 - 16 == track.spreads[OTHER].count


def test_a_spread_of_nothing() -> None:
    assert {"count": 0, "mean": None, "min": None, "max": None} == Spread().facts()


def test_stretches_give_up_where_there_are_too_many() -> None:
    stretches = Stretches(limit=2)
    for step, phase in enumerate("aabb"):
        stretches.add(step, phase)
    assert [("a", 0, 1), ("b", 2, 3)] == stretches.found
    stretches.add(4, "a")
    assert stretches.found is None


@given(st.integers(0, 50), st.integers(1, 10))
def test_ends_keep_the_first_and_the_last(count: int, limit: int) -> None:
    ends = Ends(limit)
    for number in range(count):
        ends.add({"n": number})
    kept = [item["n"] for item in ends]
    assert kept == sorted(set(kept))
    assert kept[:limit] == list(range(count))[:limit]
    assert kept[-limit:] == list(range(count))[-limit:]
    assert count == len(kept) + ends.left_out
