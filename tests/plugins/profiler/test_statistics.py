"""The running numbers, the spikes and the table."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.profiler.statistics import (
    SPIKES_SHOWN,
    Account,
    Course,
    Rises,
    Running,
    render,
)

MIB = 2**20
COUNTS = st.lists(st.integers(0, 2**45), min_size=1, max_size=50)


@given(COUNTS)
def test_running_statistics_are_those_of_the_whole_list(values: list[int]) -> None:
    running = Running()
    for value in values:
        running.add(value)
    assert (len(values), min(values), max(values)) == (running.count, running.least, running.most)
    assert pytest.approx(fmean(values), rel=1e-12) == running.mean


def test_a_peak_between_two_samples_counts() -> None:
    course = Course(10, 10, 10)
    course.add(20, 70)
    course.add(15, 15)
    assert Course(initial=10, final=15, peak=70) == course


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
    account.start({"host": (0, 0)})
    seen = [("full", "forward", 0), ("full", "backward", 1000), ("correct", "forward", 2000)]
    assert [] == [
        spike
        for phase, moment, n in seen
        for spike in account.add(1, phase, moment, {"host": (n, n)})
    ]
    (spike,) = account.add(2, "full", "forward", {"host": (100, 100)})
    assert ("full", "forward", "host", 2, 100) == (
        spike.phase,
        spike.moment,
        spike.tier,
        spike.step,
        spike.rise,
    )


def test_only_the_largest_spikes_are_kept() -> None:
    account = Account(threshold=1)
    account.start({"host": (0, 0)})
    height = 0
    for step in range(1, 101):
        height += step  # from step 2 on, step n rises by n
        account.add(step, "full", "step", {"host": (height, height)})
    assert 99 == account.spike_count
    assert [100, 99, 98, 97, 96][:SPIKES_SHOWN] == [spike.rise for spike in account.spikes]
    assert render(account, {"host": 10**6}, []).endswith("and 94 smaller spikes")


def test_the_table_has_each_tier_phase_and_moment() -> None:
    account = Account(threshold=1e9)
    account.start({"device": (MIB, MIB), "host": (8 * MIB, 8 * MIB)})
    account.add(1, "warmup", "forward", {"device": (2 * MIB, 3 * MIB), "host": (9 * MIB, 9 * MIB)})
    account.add(2, "warmup", "forward", {"device": (4 * MIB, 5 * MIB), "host": (9 * MIB, 9 * MIB)})
    table = render(account, {"device": 10 * MIB, "host": 90 * MIB}, ["a note"])
    assert [
        ["a", "note"],
        ["tier", "initial", "final", "peak", "capacity", "used", "MiB"],
        ["device", "1.0", "4.0", "5.0", "10.0", "50.0%"],
        ["host", "8.0", "9.0", "9.0", "90.0", "10.0%"],
        ["tier", "phase", "moment", "samples", "mean", "max", "min", "MiB"],
        ["device", "warmup", "forward", "2", "3.0", "4.0", "2.0"],
        ["host", "warmup", "forward", "2", "9.0", "9.0", "9.0"],
    ] == [line.split() for line in table.splitlines()]
