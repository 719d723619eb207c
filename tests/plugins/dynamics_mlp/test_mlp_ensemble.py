from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.dynamics_mlp.config import DynamicsMlpConfig
from neaptide_plugins.dynamics_mlp.ensemble import MlpEnsemble
from neaptide_plugins.dynamics_mlp.forecaster import MlpForecaster
from neaptide_toolkit.forecasting.horizon import LossForecast
from neaptide_toolkit.forecasting.networks import drawn
from neaptide_toolkit.forecasting.trust import Trust

QUICK = DynamicsMlpConfig(members=2, hidden=8, rounds=4, batch=16, remembered=64)


def course(updates: int) -> list[float]:
    """Return losses that fall as a power of the updates, with noise."""
    rng = random.Random(0)
    return [2.0 + 3.0 * (10 + k) ** -0.4 + 0.05 * rng.gauss(0.0, 1.0) for k in range(updates)]


def fed(losses: list[float], seed: int = 3) -> MlpForecaster:
    follower = MlpForecaster(QUICK, lambda _: 1.0, 400, seed)
    for loss in losses:
        follower.take(loss)
    return follower


def test_gradients_are_those_that_torch_finds() -> None:
    ensemble = MlpEnsemble(3, 5, 4, seed=1)
    generator = torch.Generator("cpu").manual_seed(0)
    weights = [torch.randn(each.shape, generator=generator) for each in ensemble.weights]
    ensemble.weights = [each.requires_grad_() for each in weights]
    inputs = torch.randn(3, 7, 5, generator=generator)
    targets = torch.randn(3, 7, generator=generator)
    loss = 0.5 * ((ensemble.predict(inputs) - targets) ** 2).mean(1).sum()
    expected = torch.autograd.grad(loss, ensemble.weights)
    ensemble.weights = [each.detach() for each in weights]
    for right, got in zip(expected, ensemble.gradients(inputs, targets), strict=True):
        torch.testing.assert_close(got, right)


def test_an_ensemble_learns_and_its_members_differ_away_from_the_samples() -> None:
    ensemble = MlpEnsemble(4, 2, 16, seed=5)
    inputs = torch.rand(64, 2, generator=torch.Generator("cpu").manual_seed(0))
    targets = inputs[:, 0] - 0.5
    assert 0.0 == float(ensemble.predict(inputs).abs().max())
    for _ in range(600):
        places = drawn(5, ensemble.optimizer.steps, 4, 64, 16)
        gradients = ensemble.gradients(inputs[places], targets[places])
        ensemble.optimizer.step(gradients, 1e-2, 0.0)
    answers = ensemble.predict(inputs)
    assert float((answers - targets).abs().max()) < 0.1
    assert float(ensemble.predict(inputs * 10).std(0).mean()) > 3 * float(answers.std(0).mean())


@given(st.floats(0.2, 3.0))
def test_trust_is_the_least_squares_factor_between_0_and_1(factor: float) -> None:
    trust, against = Trust(), Trust()
    for update in range(50):
        answer = math.sin(update)
        for each in (trust, against):
            each.waiting[update] = answer
        trust.settle(update, factor * answer)
        against.settle(update, -factor * answer)
    assert pytest.approx(min(1.0, factor), rel=1e-3) == trust.share
    assert (0.0, {}) == (against.share, against.waiting)


def test_members_that_disagree_make_a_limit_less_certain() -> None:
    together = LossForecast(1.0, 0.1, 1.2, (1.0, 1.0))
    apart = LossForecast(1.0, 0.1, 1.2, (0.7, 1.3))
    assert together.probability_below(1.2) > 0.97
    assert apart.probability_below(1.2) < 0.6


def test_what_it_holds_does_not_grow_with_the_run() -> None:
    follower, sizes = MlpForecaster(QUICK, lambda _: 1.0, 800, 0), []
    for loss in course(800):
        follower.take(loss)
        sizes.append(follower.bytes)
    assert max(sizes[:400]) == max(sizes[400:])
    held = (follower.rows, follower.targets, follower.centre, follower.scale)
    networks = follower.ensemble.optimizer
    tensors = (*held, *networks.weights, *networks.means, *networks.squares)
    assert sum(each.nbytes for each in tensors) == follower.learned_bytes


@pytest.mark.parametrize("saved_after", [0, 170, 299])
def test_it_goes_on_from_its_state_bit_for_bit(saved_after: int) -> None:
    losses = course(360)
    whole, after = fed(losses), fed([])
    after.load_state_dict(fed(losses[:saved_after]).state_dict())
    for loss in losses[saved_after:]:
        after.take(loss)
    assert whole.outcome(50) == after.outcome(50)
    for one, other in zip(whole.ensemble.weights, after.ensemble.weights, strict=True):
        assert one.equal(other)


def test_it_learns_and_draws_no_random_number_of_torch() -> None:
    before = torch.get_rng_state()
    one, other = fed(course(360)), fed(course(360), seed=4)
    assert before.equal(torch.get_rng_state())
    assert one.ensemble.optimizer.steps > 0
    assert not one.ensemble.weights[0].equal(other.ensemble.weights[0])


def test_a_question_changes_nothing() -> None:
    asked, other = fed(course(300)), fed(course(300))
    asked.catch_up()
    other.catch_up()
    for horizon in (20, 33, 200):
        assert asked.outcome(horizon) is not None
    assert [each.waiting for each in asked.trusts] == [each.waiting for each in other.trusts]
