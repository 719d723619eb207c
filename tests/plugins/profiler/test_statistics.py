"""The running numbers, the spikes and the table."""

from __future__ import annotations

import csv
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.profiler.statistics import (
    SPIKES_SHOWN,
    Account,
    ByteCourse,
    Rises,
    Running,
)
from neaptide_plugins.profiler.tables import phases_csv, render, tiers_csv

MIB = 2**20
COUNTS = st.lists(st.integers(0, 2**45), min_size=1, max_size=50)


@given(COUNTS)
def test_running_statistics_are_those_of_the_whole_list(values: list[int]) -> None:
    running = Running()
    for value in values:
        running.add(value)
    assert (len(values), min(values), max(values)) == (running.count, running.least, running.most)
    assert pytest.approx(fmean(values), rel=1e-12) == running.mean


@given(st.lists(st.integers(0, 2**45)), st.lists(st.integers(0, 2**45)))
def test_two_streams_merge_into_what_one_would_have_been(one: list[int], other: list[int]) -> None:
    whole, parts = Running(), (Running(), Running())
    for part, values in zip(parts, (one, other), strict=True):
        for value in values:
            whole.add(value)
            part.add(value)
    merged = parts[0].merged(parts[1])
    assert (whole.count, whole.least, whole.most) == (merged.count, merged.least, merged.most)
    assert pytest.approx(whole.mean, rel=1e-9) == merged.mean


def test_a_peak_between_two_samples_counts() -> None:
    course = ByteCourse(10, 10, 10, 10)
    assert [70, 15] == [course.add(20, 70), course.add(15, 15)]
    assert (10, 15, 70) == (course.initial, course.final, course.peak)


def test_a_mark_set_before_is_nobodys_peak() -> None:
    course = ByteCourse(10, 10, 10, 99)  # left by whatever ran before
    marks = [(20, 99), (20, 120), (30, 120), (5, 40), (6, 40)]
    assert [20, 120, 30, 40, 6] == [course.add(now, mark) for now, mark in marks]
    assert 120 == course.peak


@given(COUNTS, st.data())
def test_the_peak_is_that_of_the_allocator_wherever_it_is_reset(
    held: list[int], data: st.DataObject
) -> None:
    """The mark is kept as an allocator keeps it; samples and resets come anywhere between."""
    course, mark, highest = ByteCourse(0, 0, 0, 0), 0, 0
    for now in held:
        mark, highest = max(mark, now), max(highest, now)
        if data.draw(st.booleans()):
            course.add(now, mark)
            if data.draw(st.booleans()):
                mark = now
    course.add(held[-1], mark)
    assert highest == course.peak


def test_a_rise_is_told_once_a_step() -> None:
    rises = Rises(threshold=100)
    counts = [(1, 500), (2, 599), (3, 699), (3, 800), (4, 800)]
    assert [None, None, 100, None, None] == [rises.add(*count) for count in counts]


def test_micro_batches_of_one_step_are_not_compared_with_each_other() -> None:
    rises = Rises(threshold=100)
    steps = [(step, count) for step in (1, 2, 3) for count in (0, 1000, 1000)]
    assert [None] * 9 == [rises.add(*step) for step in steps]


def test_phases_and_moments_are_compared_each_with_itself() -> None:
    account = Account(threshold=100)
    account.start([("host", 0, 0)])
    seen = [("full", "forward", 0), ("full", "backward", 1000), ("correct", "forward", 2000)]
    assert [] == [
        spike
        for phase, moment, n in seen
        for spike in account.add(1, phase, moment, [("host", n, n)])
    ]
    (spike,) = account.add(2, "full", "forward", [("host", 100, 100)])
    assert ("full", "forward", "host", 2, 100) == (
        spike.phase,
        spike.moment,
        spike.tier,
        spike.step,
        spike.rise,
    )


def test_only_the_largest_spikes_are_kept() -> None:
    account = Account(threshold=1)
    account.start([("host", 0, 0)])
    height = 0
    for step in range(1, 101):
        height += step  # from step 2 on, step n rises by n
        account.add(step, "full", "step", [("host", height, height)])
    assert 99 == account.spike_count
    assert [100, 99, 98, 97, 96][:SPIKES_SHOWN] == [spike.rise for spike in account.spikes]
    assert render(account, {"host": 10**6}, []).endswith("and 94 smaller spikes")


@pytest.fixture
def account() -> Account:
    account = Account(threshold=1e9)
    host = ("host", 9 * MIB, 9 * MIB)
    account.start([("device", MIB, MIB), ("host", 8 * MIB, 8 * MIB)])
    account.add(1, "warmup", "forward", [("device", 2 * MIB, 3 * MIB), host])
    account.add(2, "warmup", "forward", [("device", 4 * MIB, 5 * MIB), host])
    account.add(2, "warmup", "backward", [("device", 3 * MIB, 5 * MIB), host])
    return account


CAPACITIES = {"device": 10 * MIB, "host": 90 * MIB}


def test_the_table_has_each_tier_phase_and_moment(account: Account) -> None:
    table = render(account, CAPACITIES, ["a note"], ["a file"])
    assert [
        ["a", "note"],
        ["tier", "initial", "final", "peak", "capacity", "used", "MiB"],
        ["device", "1.0", "3.0", "5.0", "10.0", "50.0%"],
        ["host", "8.0", "9.0", "9.0", "90.0", "10.0%"],
        ["tier", "phase", "moment", "samples", "mean", "max", "min", "peak", "MiB"],
        ["device", "warmup", "all", "3", "3.0", "4.0", "2.0", "5.0"],
        ["device", "warmup", "forward", "2", "3.0", "4.0", "2.0", "5.0"],
        ["device", "warmup", "backward", "1", "3.0", "3.0", "3.0", "3.0"],
        ["host", "warmup", "all", "3", "9.0", "9.0", "9.0", "9.0"],
        ["host", "warmup", "forward", "2", "9.0", "9.0", "9.0", "9.0"],
        ["host", "warmup", "backward", "1", "9.0", "9.0", "9.0", "9.0"],
        ["a", "file"],
    ] == [line.split() for line in table.splitlines()]


def test_the_csv_of_the_phases_is_in_bytes(account: Account) -> None:
    rows = list(csv.DictReader(phases_csv(account).splitlines()))
    assert {
        "tier": "device",
        "phase": "warmup",
        "moment": "all",
        "samples": "3",
        "mean_bytes": str(3 * MIB),
        "max_bytes": str(4 * MIB),
        "min_bytes": str(2 * MIB),
        "peak_bytes": str(5 * MIB),
    } == rows[0]
    assert ["all", "forward", "backward"] * 2 == [row["moment"] for row in rows]


def test_the_csv_of_the_tiers_has_the_share_of_the_capacity(account: Account) -> None:
    device, host = csv.DictReader(tiers_csv(account, CAPACITIES).splitlines())
    assert ("0.500000", str(10 * MIB)) == (device["utilization"], device["capacity_bytes"])
    assert ("0.100000", str(8 * MIB)) == (host["utilization"], host["initial_bytes"])
