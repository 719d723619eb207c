"""Each detector on courses made for it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.divergence_monitor import detect

INF, NAN = math.inf, math.nan
ANY = st.lists(st.floats(), max_size=40)
POSITIVE = st.lists(st.floats(1e-3, 1e3), min_size=9, max_size=40)


def noise(count: int, deviation: float = 0.1, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(2.0, deviation) for _ in range(count)]


def test_a_rise_is_counted_in_deviations() -> None:
    before = [1.0, 3.0] * 4  # mean 2, deviation 1
    assert [0.0, 1.0, 3.5, -2.0] == [detect.rise([*before, x]) for x in (2.0, 3.0, 5.5, 0.0)]


def test_seven_losses_say_nothing_and_eight_do() -> None:
    losses = noise(8)
    assert 0.0 == detect.rise([*losses[:7], 1e6])
    assert detect.rise([*losses, 1e6]) > 1e6


def test_on_a_flat_course_rounding_is_no_rise() -> None:
    assert detect.rise([2.0] * 20 + [2.0 + 1e-6]) < 1e-3
    assert pytest.approx(10.0) == detect.rise([2.0] * 20 + [2.2])
    assert 0.0 == detect.rise([0.0] * 20 + [1.0])


def test_what_is_not_finite_before_does_not_blind_the_detectors() -> None:
    before = [*noise(10), INF, NAN, -INF, *noise(5)]
    assert detect.rise([*before, 9.0]) > 10.0
    assert detect.exploded([*before, 99.0], 10.0)
    assert detect.vanished([*before, 1e-9], 0.01)


@pytest.mark.parametrize("newest", [INF, -INF, NAN])
def test_what_is_not_finite_is_its_own_finding(newest: float) -> None:
    course = [*noise(20), newest]
    assert detect.not_finite(course)
    assert 0.0 == detect.rise(course)
    assert not detect.exploded(course, 10.0)
    assert not detect.vanished(course, 0.01)


def test_a_norm_explodes_over_the_multiple_of_the_median() -> None:
    before = [1.0] * 7 + [1000.0] * 3  # the median does not mind three outliers
    assert [False, True] == [detect.exploded([*before, x], 10.0) for x in (10.0, 10.01)]


def test_a_norm_vanishes_under_the_share_of_the_median() -> None:
    before = [1.0] * 7 + [1e-9] * 3
    assert [False, True] == [detect.vanished([*before, x], 0.01) for x in (0.01, 0.0099)]


def swinging(growth: float, count: int = 24) -> list[float]:
    return [2.0 + (-1) ** n * 0.01 * growth**n for n in range(count)]


@pytest.mark.parametrize(
    "losses",
    [
        swinging(1.0),
        swinging(0.9),
        [1.1**n for n in range(24)],
        swinging(1.1)[:16],
        [2.0] * 24,
    ],
    ids=["steady", "fading", "rising", "short", "flat"],
)
def test_what_does_not_swing_more_and_more_does_not_oscillate(losses: list[float]) -> None:
    assert not detect.oscillates(losses, 0.9)


def test_a_growing_swing_oscillates() -> None:
    assert detect.oscillates(swinging(1.1), 1.0)


def test_one_loss_out_of_turn_is_forgiven_by_the_share() -> None:
    losses = [*swinging(1.1), 1.0]
    assert [True, False] == [detect.oscillates(losses, share) for share in (0.9, 1.0)]


def test_a_calm_noisy_course_is_rarely_more_than_a_spike() -> None:
    losses = noise(3000)
    found = [detect.rise(losses[n - 65 : n]) for n in range(65, 3000)]
    assert sum(rise > 3.0 for rise in found) < 15  # one in 740 of a normal distribution
    assert max(found) < 10.0
    assert not any(detect.oscillates(losses[n - 65 : n], 0.9) for n in range(65, 3000))


@given(ANY)
def test_every_course_gets_an_answer(values: list[float]) -> None:
    answers = (
        detect.not_finite(values),
        detect.exploded(values, 10.0),
        detect.vanished(values, 0.01),
        detect.oscillates(values, 0.9),
    )
    assert all(isinstance(answer, bool) for answer in answers)
    assert isinstance(detect.rise(values), float)


@given(POSITIVE)
def test_a_norm_never_explodes_and_vanishes_at_once(norms: list[float]) -> None:
    assert not (detect.exploded(norms, 10.0) and detect.vanished(norms, 0.01))


@given(POSITIVE, st.sampled_from([0.25, 4.0, 1024.0]))
def test_units_do_not_matter(losses: list[float], unit: float) -> None:
    scaled = [unit * loss for loss in losses]
    assert pytest.approx(detect.rise(losses), rel=1e-9, abs=1e-9) == detect.rise(scaled)
