from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_plugins.dynamics_linear.config import DynamicsLinearConfig
from neaptide_plugins.dynamics_linear.forecaster import LinearForecaster
from neaptide_plugins.lr_schedule.curve import Curve

STEPS = 600
FACTOR = Curve(name="linear", steps=STEPS, warmup=20).factor


def forecaster(**given_settings: Any) -> LinearForecaster:
    return LinearForecaster(DynamicsLinearConfig(**given_settings), FACTOR, STEPS)


def course(updates: int, seed: int = 0, noise: float = 0.05) -> list[float]:
    """Return losses that fall as a power of the updates, with noise."""
    rng = random.Random(seed)
    return [2.0 + 3.0 * (10 + k) ** -0.4 + noise * rng.gauss(0.0, 1.0) for k in range(updates)]


def fed(losses: list[float], **given_settings: Any) -> LinearForecaster:
    follower = forecaster(**given_settings)
    for loss in losses:
        follower.take(loss)
    return follower


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_who_says_that_the_loss_stays(seed: int) -> None:
    follower = fed(course(500, seed))
    assert [20, 50, 200] == [each.horizon for each in follower.models]
    follower.catch_up()
    for each, least in zip(follower.models, (0.1, 0.2, 0.5), strict=True):
        assert least < each.skill < 1.0


@pytest.mark.parametrize("horizon", [1, 20, 33, 50, 100, 200])
def test_a_forecast_is_near_the_loss_to_come(horizon: int) -> None:
    follower = fed(course(400))
    outcome = follower.forecast(horizon)
    assert outcome is not None
    truth = 2.0 + 3.0 * (10 + 400 + horizon) ** -0.4
    assert abs(truth - outcome.loss) < 3 * outcome.error
    assert 0.0 < outcome.error < 0.05


def test_beyond_the_longest_horizon_it_is_silent() -> None:
    follower = fed(course(400))
    assert follower.forecast(200) is not None
    assert follower.forecast(201) is None


def test_it_is_silent_until_it_has_been_scored() -> None:
    follower = forecaster(least=10)
    arrived = None
    for update, loss in enumerate(course(100), start=1):
        follower.take(loss)
        if arrived is None and follower.forecast(20) is not None:
            arrived = update
    # The tenth sample is of update 50; the mean around what comes 20 later is in after 12 more.
    assert 5 * 10 + 20 + 12 <= arrived <= 5 * 10 + 20 + 12 + 5


def test_it_is_silent_at_a_horizon_where_it_loses() -> None:
    # Each rise is followed by a fall: who goes on in a line is wrong, who stays is not.
    rng = random.Random(0)
    wave = [3.0 + math.sin(k * math.pi / 50) + 0.01 * rng.gauss(0, 1) for k in range(300)]
    follower = fed(wave, horizons=(50, 100), ridge=1e9, smoothing=0.0, around=0)
    for each in follower.models:
        follower.catch_up()
        assert follower.consulted(each) == (each.skill > 0.0)
        assert (follower.forecast(each.horizon) is None) == (each.skill <= 0.0)
    assert any(each.skill <= 0.0 for each in follower.models)


def test_what_it_holds_does_not_grow_with_the_run() -> None:
    follower = forecaster()
    sizes = []
    for loss in course(1200):
        follower.take(loss)
        sizes.append(follower.bytes)
    assert max(sizes[:600]) == max(sizes[600:]) < 200_000


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e300])
def test_a_loss_that_is_not_finite_is_never_learned_from(broken: float) -> None:
    losses = course(300)
    follower = fed(losses)
    follower.take(broken)
    assert follower.forecast(50) is None
    for loss in course(330)[301:]:
        follower.take(loss)
    assert follower.forecast(50) is not None
    follower.catch_up()
    assert math.isfinite(follower.level.now)
    assert 0.0 < follower.level.unit < 10.0
    for each, ridge in zip(follower.models, follower.ridges, strict=True):
        assert ridge.products.isfinite().all()
        assert math.isfinite(each.squares)


@pytest.mark.parametrize("saved_after", [0, 3, 100, 137, 299])
def test_it_goes_on_from_its_state_bit_for_bit(saved_after: int) -> None:
    losses = course(300)
    whole = fed(losses)
    before = fed(losses[:saved_after])
    after = forecaster()
    after.load_state_dict(before.state_dict())
    for loss in losses[saved_after:]:
        after.take(loss)
    assert whole.forecast(50) == after.forecast(50)
    for one, other in zip(whole.models, after.models, strict=True):
        assert (one.scored, one.squares) == (other.scored, other.squares)
    for one, other in zip(whole.ridges, after.ridges, strict=True):
        assert one.products.equal(other.products)


def test_begun_late_it_knows_how_far_the_schedule_is() -> None:
    follower = forecaster()
    follower.begin(300)
    assert pytest.approx(sum(map(FACTOR, range(300)))) == follower.learned
    for loss in course(550)[300:]:
        follower.take(loss)
    assert follower.forecast(20) is not None


def test_losses_of_another_unit_give_forecasts_of_that_unit() -> None:
    one, other = fed(course(300)), fed([8.0 * loss for loss in course(300)])
    first, second = one.forecast(50), other.forecast(50)
    assert first is not None
    assert second is not None
    # All but levels of losses among the features is free of units, and the ridge mutes those.
    assert pytest.approx(8.0 * first.loss, rel=1e-3) == second.loss


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(allow_nan=True, width=32), max_size=80), st.integers(1, 30))
def test_whatever_the_losses_it_forecasts_numbers_or_nothing(
    losses: list[float], horizon: int
) -> None:
    follower = fed(losses, horizons=(2, 30), every=2, around=1, least=1)
    outcome = follower.forecast(horizon)
    if outcome is not None:
        assert math.isfinite(outcome.loss)
        assert math.isfinite(outcome.error)


@pytest.mark.parametrize("exploded", [1e3, 1e12, 1e38, -1e12])
def test_a_batch_that_explodes_does_not_silence_it(exploded: float) -> None:
    losses = course(500)
    expected = fed(losses).forecast(20)
    follower = fed([*losses[:250], exploded, *losses[251:]])
    found = follower.forecast(20)
    assert expected is not None
    assert found is not None
    assert abs(expected.loss - found.loss) < 3 * expected.error
    assert found.error < 3 * expected.error


def test_nothing_is_cut_off_in_an_ordinary_run() -> None:
    losses = course(500)
    assert losses == fed(losses).losses[-500:]


@pytest.mark.parametrize("still", [0.0, 1.0])
@pytest.mark.parametrize("after", [1.5, 100.0, -3.0, 1e6])
def test_losses_that_move_after_all_are_followed(still: float, after: float) -> None:
    follower = fed([still] * 50 + [after] * 120)
    assert follower.losses[-20:] == [after] * 20
    assert pytest.approx(after, rel=5e-2) == follower.level.now
