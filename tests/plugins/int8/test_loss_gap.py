"""When precision is raised, and for whom."""

from __future__ import annotations

import math

import pytest

from neaptide_plugins.int8.loss_gap import LossGap, relative_gap, worst_quarter


def test_it_is_due_at_the_first_and_then_every_so_often() -> None:
    measuring, never = LossGap(3, None), LossGap(0, None)
    assert [True, False, False, True] == [measuring.is_due() for _ in range(4)]
    assert not any(never.is_due() for _ in range(4))


@pytest.mark.parametrize(
    ("quantized", "gap"), [(2.5, 0.25), (1.5, -0.25), (math.nan, math.inf), (math.inf, math.inf)]
)
def test_the_gap_is_relative_to_the_full_loss(quantized: float, gap: float) -> None:
    assert gap == relative_gap(2.0, quantized)


def test_the_worst_quarter_pays_and_nan_is_the_worst() -> None:
    errors = {"a": 0.1, "b": math.nan, "c": 0.3, "d": 0.2, "e": 0.2, "f": 0.0, "g": 0.0, "h": 0.0}
    assert ["b", "c"] == worst_quarter(errors)
    assert ["a"] == worst_quarter({"a": 0.1})


def test_precision_is_raised_beyond_the_limit_only() -> None:
    measuring, errors = LossGap(1, 0.1), {"a": 0.1, "b": 0.2}
    assert [] == measuring.note(1.0, 1.05, errors)
    assert ["b"] == measuring.note(1.0, 1.2, errors)
    assert ["b"] == measuring.exempt
    assert {"loss_gap": pytest.approx(0.2), "quantization_error": 0.2} == measuring.measured


def test_against_a_loss_that_is_not_finite_nothing_is_measured() -> None:
    measuring = LossGap(1, 0.1)
    assert [] == measuring.note(math.nan, math.nan, {"a": math.nan})
    assert {} == measuring.measured
    assert [] == measuring.exempt


def test_its_state_comes_back() -> None:
    measuring, other = LossGap(2, 0.1), LossGap(2, 0.1)
    measuring.is_due()
    measuring.note(1.0, 2.0, {"a": 1.0})
    other.load_state_dict(measuring.state_dict())
    assert ["a"] == other.exempt
    assert not other.is_due()
