"""What a loss is worth in passes: laws of the curve, multipliers of known curves, intervals."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.compare.budget import curve, interval, multiplier, paired

losses = st.floats(0.01, 10.0)
budgets = st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True)


@given(st.data())
def test_a_curve_never_rises_and_keeps_its_mean(data: st.DataObject) -> None:
    points = [(float(budget), data.draw(losses)) for budget in sorted(data.draw(budgets))]
    found = curve(points)
    assert [budget for budget, _ in points] == list(found.budgets)
    assert sorted(found.losses, reverse=True) == list(found.losses)
    assert math.isclose(fmean(loss for _, loss in points), fmean(found.losses))


@given(
    st.lists(st.floats(1.0, 1e6), min_size=2, max_size=6, unique=True).filter(
        lambda values: min(b / a for a, b in pairwise(sorted(values))) > 1.01
    ),
    st.floats(0.0, 1.0),
)
def test_what_is_reached_after_a_budget_takes_that_budget(at: list[float], share: float) -> None:
    ordered = sorted(at)
    found = curve([(budget, 10.0 - number) for number, budget in enumerate(ordered)])
    budget = ordered[0] * (ordered[-1] / ordered[0]) ** share
    loss = found.at(budget)
    assert loss is not None
    needed = found.reaching(loss)
    assert needed is not None
    assert math.isclose(budget, needed, rel_tol=1e-6)


def test_a_curve_answers_only_where_it_was_measured() -> None:
    found = curve([(100.0, 2.0), (200.0, 1.0)])
    assert (None, None) == (found.at(99.0), found.at(201.0))
    assert (None, None) == (found.reaching(2.1), found.reaching(0.9))
    assert found.at(math.sqrt(100.0 * 200.0)) == pytest.approx(1.5)


def test_a_flat_stretch_is_reached_with_the_fewest_passes() -> None:
    found = curve([(100.0, 2.0), (200.0, 1.0), (400.0, 1.2)])
    assert (2.0, 1.1, 1.1) == pytest.approx(found.losses)
    assert found.reaching(1.1) == pytest.approx(200.0)


@pytest.mark.parametrize("bad", [[], [(100.0, math.inf)], [(100.0, math.nan)]])
def test_a_curve_needs_finite_losses(bad: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="a budget curve needs finite losses"):
        curve(bad)


@given(st.floats(0.75, 1.33), st.floats(-0.2, 0.2))
def test_a_seed_counts_by_its_difference_to_the_baseline_of_that_seed(
    worth: float, luck: float
) -> None:
    def law(passes: float) -> float:
        return 3.0 - 0.2 * math.log(passes)

    baseline = curve([(passes, law(passes)) for passes in (500.0, 1000.0, 2000.0)])
    found = paired(baseline, 1000.0, law(worth * 1000.0) + luck, law(1000.0) + luck, 1000.0)
    assert found == pytest.approx(worth)
    assert multiplier(baseline, law(worth * 1000.0), 1000.0) == pytest.approx(worth)


def test_half_the_passes_for_the_same_loss_are_twice_the_budget() -> None:
    baseline = curve([(500.0, 2.0), (1000.0, 1.0)])
    assert multiplier(baseline, 1.0, 500.0) == pytest.approx(2.0)


def test_an_interval_is_students_over_the_logarithms() -> None:
    found = interval([1.0, math.e])
    half = 6.314 * math.sqrt(0.5) / math.sqrt(2.0)
    assert (math.exp(0.5), math.exp(0.5 - half), math.exp(0.5 + half)) == pytest.approx(
        (found.mean, found.low, found.high)
    )


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40))
def test_the_mean_lies_inside_the_interval(values: list[float]) -> None:
    found = interval(values)
    assert min(values) * 0.999 <= found.mean <= max(values) * 1.001
    if len(values) == 1:
        assert (None, None) == (found.low, found.high)
    else:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.mean * 1.001
        assert found.high >= found.mean * 0.999


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [-1.0]])
def test_an_interval_needs_positive_values(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="needs positive values"):
        interval(bad)
