"""The level of alarm, and what moves it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.divergence_monitor.alarm import Alarm, AlarmLevel
from neaptide_plugins.divergence_monitor.config import DivergenceMonitorConfig
from neaptide_plugins.divergence_monitor.monitor import AlarmMonitor, Change

UPDATES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120)
CALM = st.integers(1, 10)
FLAT = [1.0, 3.0] * 10  # mean 2, deviation 1


def after(updates: list[tuple[int, bool]], calm: int) -> list[Alarm]:
    """Return the alarms, the first one included."""
    alarms = [Alarm()]
    for findings, critical in updates:
        alarms.append(alarms[-1].after(findings, critical=critical, calm=calm))
    return alarms


def levels(*updates: int, calm: int = 3) -> list[AlarmLevel]:
    return [alarm.level for alarm in after([(n, False) for n in updates], calm)[1:]]


@given(UPDATES, CALM)
def test_the_level_never_falls_by_more_than_one(updates: list[tuple[int, bool]], calm: int) -> None:
    course = [alarm.level for alarm in after(updates, calm)]
    assert all(then - now <= 1 for then, now in pairwise(course))
    assert set(course) <= set(AlarmLevel)


@given(UPDATES, CALM)
def test_the_level_only_falls_when_calm(updates: list[tuple[int, bool]], calm: int) -> None:
    course = after(updates, calm)
    for index in range(1, len(course)):
        if course[index].level < course[index - 1].level:
            quiet = updates[max(0, index - calm) : index]
            assert [(0, False)] * calm == [(n, n > 0 and bad) for n, bad in quiet]


@given(UPDATES, CALM)
def test_any_alarm_ends_in_three_calms(updates: list[tuple[int, bool]], calm: int) -> None:
    ended = after([*updates, *[(0, False)] * 3 * calm], calm)[-1]
    assert Alarm() == ended


@given(UPDATES, CALM)
def test_critical_is_only_what_is_critical(updates: list[tuple[int, bool]], calm: int) -> None:
    alarms = after([(n, False) for n, _ in updates], calm)
    assert AlarmLevel.CRITICAL not in {alarm.level for alarm in alarms}
    assert AlarmLevel.CRITICAL is alarms[-1].after(0, critical=True, calm=calm).level


def test_one_finding_is_caution_and_two_are_a_warning() -> None:
    assert [AlarmLevel.CAUTION] == levels(1)
    assert [AlarmLevel.WARNING] == levels(2)
    assert [
        AlarmLevel.CAUTION,
        AlarmLevel.CAUTION,
        AlarmLevel.WARNING,
        AlarmLevel.WARNING,
    ] == levels(1, 0, 1, 1)


def test_calm_is_counted_anew_after_a_finding_and_after_a_fall() -> None:
    W, C, N = AlarmLevel.WARNING, AlarmLevel.CAUTION, AlarmLevel.NORMAL  # noqa: N806 - a row of levels
    assert [W, W, W, W, W, W, C, C, C, N, N] == levels(2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)


def watch(**settings: Any) -> AlarmMonitor:
    return AlarmMonitor(DivergenceMonitorConfig(**settings))


def read(over: AlarmMonitor, losses: list[float], norms: list[float] | None = None) -> list[Change]:
    """Return the changes when one update after another is looked at, as in a run."""
    norms = norms or []
    return [
        change
        for number in range(1, len(losses) + 1)
        for change in over.read(number, losses[:number][-256:], norms[:number][-64:])
    ]


def test_a_spike_is_caution() -> None:
    (change,) = read(watch(), [*FLAT, 5.5])
    assert Change(AlarmLevel.NORMAL, AlarmLevel.CAUTION, ("loss spike",)) == change


def test_a_spike_of_ten_deviations_is_critical() -> None:
    (change,) = read(watch(), [*FLAT, 12.5])
    assert Change(AlarmLevel.NORMAL, AlarmLevel.CRITICAL, ("loss spike",)) == change


def test_what_is_no_spike_is_not_critical_either() -> None:
    assert [] == read(watch(loss_sigma=20.0), [*FLAT, 12.5])


def test_two_findings_at_once_are_a_warning() -> None:
    (change,) = read(watch(), [*FLAT, 5.5], [1.0] * 20 + [11.0])
    assert (
        Change(AlarmLevel.NORMAL, AlarmLevel.WARNING, ("loss spike", "exploding gradient"))
        == change
    )


def test_a_vanished_gradient_is_found() -> None:
    (change,) = read(watch(), [*FLAT, 2.0], [1.0] * 20 + [0.001])
    assert ("vanishing gradient",) == change.found


def test_nan_is_critical_from_the_first_update() -> None:
    (change,) = read(watch(), [math.nan])
    assert Change(AlarmLevel.NORMAL, AlarmLevel.CRITICAL, ("non-finite",)) == change
    (change,) = read(watch(), [1.0], [math.inf])
    assert Change(AlarmLevel.NORMAL, AlarmLevel.CRITICAL, ("non-finite",)) == change


def test_the_shortest_window_finds_something() -> None:
    assert [AlarmLevel.CAUTION] == [change.level for change in read(watch(window=8), [*FLAT, 5.5])]


def test_the_window_forgets() -> None:
    far = [100.0, -100.0] * 20
    assert [] == read(watch(window=64), [*far, *FLAT, 5.5])
    assert [AlarmLevel.CAUTION] == [c.level for c in read(watch(window=16), [*far, *FLAT, 5.5])][
        -1:
    ]


def test_updates_seen_late_are_judged_one_by_one() -> None:
    losses = [*FLAT, 5.5, 2.0, 1.5, 2.5]
    at_once = watch()
    changes = list(at_once.read(len(losses), losses, []))
    assert changes == read(watch(), losses)
    assert [] == list(at_once.read(len(losses), losses, []))
    assert 1 == at_once.findings


def test_more_updates_than_the_history_holds_are_no_error() -> None:
    late = watch()
    assert [AlarmLevel.CAUTION] == [change.level for change in late.read(5000, [*FLAT, 5.5], [])]
    assert 5000 == late.seen


def test_what_was_undone_is_no_measure() -> None:
    exploded = [1e3 * value for value in FLAT]
    norms = [1.0] * 20 + [1e4] * 20
    plain, forgetful = watch(), watch()
    for one in (plain, forgetful):
        read(one, [*FLAT, *exploded], norms)
    forgetful.forget(unread=1)
    losses = [*FLAT, *exploded, *FLAT]
    norms = [*norms, *[1.0] * 20]
    before = plain.findings
    for number in range(41, 61):
        list(plain.read(number, losses[:number], norms[:number]))
        list(forgetful.read(number, losses[:number], norms[:number]))
    assert before < plain.findings  # the healthy norms look vanished
    assert before == forgetful.findings


def test_a_skipped_update_is_critical() -> None:
    one = watch()
    (change,) = one.skipped()
    assert Change(AlarmLevel.NORMAL, AlarmLevel.CRITICAL, ("non-finite",)) == change
    assert [] == list(one.skipped())
    assert 2 == one.findings
