"""What a loss is worth in passes: laws of the curve, multipliers of known curves, intervals."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_verbs.compare.budget import BudgetCurve, curve, paired, worth

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


def test_losses_near_zero_are_told_apart() -> None:
    tiny = curve([(100.0, 2e-14), (200.0, 1e-14)])
    assert tiny.reaching(1e-14) == pytest.approx(200.0)
    assert tiny.reaching(3e-14) is None
    zero = curve([(100.0, 0.0), (200.0, 0.0)])
    assert zero.reaching(0.0) == pytest.approx(100.0)


def test_losses_may_be_negative() -> None:
    below = curve([(100.0, -1.0), (200.0, -2.0)])
    assert below.reaching(-1.5) == pytest.approx(math.sqrt(100.0 * 200.0))


def law(passes: float) -> float:
    return 3.0 - 0.2 * math.log(passes)


def known_curve(offset: float = 0.0) -> BudgetCurve:
    return curve([(passes, law(passes) + offset) for passes in (500.0, 1000.0, 2000.0)])


@given(st.floats(0.75, 1.33), st.floats(-10.0, 10.0))
def test_a_seed_counts_by_its_difference_to_the_baseline_of_that_seed(
    multiplier: float, offset: float
) -> None:
    difference = law(multiplier * 1000.0) - law(1000.0)
    found = paired(known_curve(offset), 1000.0, difference, 1000.0)
    assert found == pytest.approx(multiplier, rel=1e-6)
    together = worth(known_curve(offset), 1000.0, [difference], 1000.0)
    assert together.mean == pytest.approx(multiplier, rel=1e-6)
    assert (None, None) == (together.low, together.high)


def test_half_the_passes_for_the_same_loss_are_twice_the_budget() -> None:
    baseline = curve([(500.0, 2.0), (1000.0, 1.0)])
    assert worth(baseline, 1000.0, [0.0, 0.0], 500.0).mean == pytest.approx(2.0)


def test_an_interval_is_students_laid_off_on_the_curve() -> None:
    baseline = curve([(math.exp(-20.0), 20.0), (math.exp(20.0), -20.0)])
    found = worth(baseline, 1.0, [0.0, -1.0], 1.0)
    half = 6.314 * math.sqrt(0.5) / math.sqrt(2.0)
    assert (math.exp(0.5), math.exp(0.5 - half), math.exp(0.5 + half)) == pytest.approx(
        (found.mean, found.low, found.high)
    )


def test_one_seed_outside_the_curve_leaves_the_mean_of_all() -> None:
    found = worth(known_curve(), 1000.0, [-0.2, 0.0, 0.1], 1000.0)
    assert None is paired(known_curve(), 1000.0, -0.2, 1000.0)
    assert found.outside is None
    assert found.mean == pytest.approx(math.exp(0.1 / 3 / 0.2))
    assert (0.0, math.inf) == (found.low, found.high)


@pytest.mark.parametrize(
    ("shift", "outside", "ends"), [(1.0, "below", (0.0, 0.5)), (-1.0, "above", (2.0, math.inf))]
)
def test_where_the_curve_ends_it_says_on_which_side(
    shift: float, outside: str, ends: tuple[float, float]
) -> None:
    found = worth(known_curve(), 1000.0, [shift, shift, shift + 0.001], 1000.0)
    assert outside == found.outside
    assert math.isnan(found.mean)
    assert (0.5, 2.0) == (found.least, found.most)
    assert ends == (found.low, found.high)


def test_the_same_run_is_worth_itself_however_flat_the_curve() -> None:
    for losses in ((1.0, 1.0, 1.0), (1.0, 1.1, 1.3), (2.0, 1.0, 1.0)):
        flat = curve([*zip((500.0, 1000.0, 2000.0), losses, strict=True)])
        found = worth(flat, 1000.0, [0.0, 0.0], 1000.0)
        assert (1.0, 1.0, 1.0) == pytest.approx((found.mean, found.low, found.high))


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60))
def test_the_mean_lies_inside_the_interval(differences: list[float]) -> None:
    found = worth(known_curve(), 1000.0, differences, 1000.0)
    if len(differences) == 1:
        assert (None, None) == (found.low, found.high)
        return
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high
    if found.outside is None:
        assert found.low <= found.mean * 1.000001
        assert found.high >= found.mean * 0.999999


def test_more_seeds_never_widen_students_factor() -> None:
    def half(seeds: int) -> float:
        spread = [(-0.01) ** (number % 2) * 0.01 for number in range(seeds)]
        found = worth(known_curve(), 1000.0, spread, 1000.0)
        return math.log((found.high or 0.0) / (found.low or 1.0)) * math.sqrt(seeds)

    assert half(32) < half(30)
    assert half(32) == pytest.approx(half(30), rel=0.01)


@pytest.mark.parametrize(("differences", "at"), [([], 1000.0), ([0.0], 10.0)])
def test_without_anything_to_compare_there_is_no_worth(differences: list[float], at: float) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        worth(known_curve(), at, differences, 1000.0)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("true", [1.0, 1.1, 1.5])
def test_nine_in_ten_intervals_hold_the_truth(seeds: int, true: float) -> None:
    """Power laws, with noise common to both sides and noise of each run, a tenth of the budget."""
    draw, inside = Random(7), 0

    def noise() -> float:
        return draw.gauss(0.0, 0.1 * 0.15)

    def power(passes: float) -> float:
        return 1.0 + 0.5 * passes**-0.3

    for _ in range(400):
        both = [noise() for _ in range(seeds)]
        trained = {
            passes: [power(passes) + luck + noise() for luck in both]
            for passes in (0.7071, 1.0, 1.4142, 2.0)
        }
        candidate = [power(true) + luck + noise() for luck in both]
        points = [(passes, loss) for passes, losses in trained.items() for loss in losses]
        differences = [mine - theirs for mine, theirs in zip(candidate, trained[1.0], strict=True)]
        found = worth(curve(points), 1.0, differences, 1.0)
        inside += (found.low or 0.0) <= true <= (found.high or 0.0)
    assert inside >= 0.86 * 400
