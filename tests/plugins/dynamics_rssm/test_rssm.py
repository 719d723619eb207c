from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_plugins.dynamics_rssm.config import AT_ONCE, DynamicsRssmConfig
from neaptide_plugins.dynamics_rssm.forecaster import RssmForecaster
from neaptide_plugins.dynamics_rssm.models import (
    ACTIONS,
    GROUPS,
    UNITS,
    Models,
    RssmWeights,
    drawn_weights,
)
from neaptide_plugins.dynamics_rssm.states import Compressed
from neaptide_plugins.dynamics_rssm.training import RolloutBatch, balanced, gradients, loss
from neaptide_toolkit.forecasting.networks import AdamW

QUICK = DynamicsRssmConfig(
    horizons=(10, 40), members=2, stride=2, rounds=1, batch=4, remembered=32, lr=3e-3
)
INPUTS, STEPS = 5, (1, 3)


def course(updates: int) -> list[float]:
    """Return losses that fall as a power of the updates, with noise."""
    rng = random.Random(0)
    return [2.0 + 3.0 * (10 + k) ** -0.4 + 0.05 * rng.gauss(0.0, 1.0) for k in range(updates)]


def fed(losses: list[float], seed: int = 3) -> RssmForecaster:
    follower = RssmForecaster(QUICK, lambda _: 1.0, 400, seed)
    for each in losses:
        follower.take(each)
    return follower


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


def a_batch() -> RolloutBatch:
    return RolloutBatch(
        deter=drawn(2, 4, UNITS).tanh(),
        seen=drawn(2, 4, INPUTS),
        after=drawn(2, 4, INPUTS, seed=1),
        actions=drawn(2, 4, STEPS[-1], ACTIONS, seed=2),
        targets=drawn(2, 4, len(STEPS), seed=3),
    )


def trained_weights() -> RssmWeights:
    weights = drawn_weights(2, INPUTS, len(STEPS), seed=7)
    return weights._replace(readout=drawn(*weights.readout.shape, seed=5) / 16)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 1.0), st.integers(0, 100))
def test_a_compressed_state_is_292_bytes_and_off_by_half_a_scale(size: float, seed: int) -> None:
    deter = drawn(3, UNITS, seed=seed).tanh() * size
    stoch = torch.randint(32, (3, GROUPS), generator=torch.Generator("cpu").manual_seed(seed))
    held = Compressed.of(deter, stoch)
    assert 3 * (256 + 32 + 4) == sum(each.nbytes for each in held.tensors)
    again, kinds = held.restored()
    assert kinds.equal(stoch)
    off = (again - deter).abs().amax(1)
    least = 1e-36  # below, a scale has few bits or none
    assert bool((off <= 0.501 * held.scales + least).all())
    assert bool((off <= 1 / 254 * 1.002).all())


def test_rollouts_in_training_are_those_of_the_op() -> None:
    whole, batch = trained_weights(), a_batch()
    for one in (slice(0, 1), slice(1, 2)):  # each member has drawn its own steps
        weights = RssmWeights(*(each[one] for each in whole))
        given = {name: getattr(batch, name)[one] for name in ("deter", "seen", "after", "actions")}
        models = Models(weights)
        stoch = models.observed(batch.deter[one], batch.seen[one])
        answers = models.answers(batch.deter[one], stoch, batch.actions[one][0], STEPS)
        exact = RolloutBatch(**given, targets=answers)
        unknown = RolloutBatch(**given, targets=torch.full_like(answers, torch.nan))
        # What the op answers is what training reads, so nothing but the divergence is left.
        torch.testing.assert_close(loss(weights, exact, STEPS), loss(weights, unknown, STEPS))


def test_the_gradient_of_the_readout_is_that_of_the_squared_error() -> None:
    weights, batch = trained_weights(), a_batch()
    found = RssmWeights(*gradients(weights, batch, STEPS)).readout_bias
    bias, step = weights.readout_bias, 1e-2
    for member, number in ((0, 0), (1, 1)):
        moved = [bias.clone(), bias.clone()]
        moved[0][member, number] += step
        moved[1][member, number] -= step
        up, down = (loss(weights._replace(readout_bias=each), batch, STEPS) for each in moved)
        expected = (up - down) / (2 * step)
        torch.testing.assert_close(found[member, number], expected, rtol=1e-2, atol=1e-4)


def test_the_prior_learns_more_from_the_divergence_than_the_posterior() -> None:
    first, second = drawn(1, 2, 1024).requires_grad_(), drawn(1, 2, 1024, seed=1).requires_grad_()
    assert 0.0 == pytest.approx(float(balanced(first, first).sum().detach()), abs=1e-6)
    of_prior, of_posterior = torch.autograd.grad(balanced(first, second).sum(), (first, second))
    assert float(of_prior.norm()) > 2 * float(of_posterior.norm())


def test_models_learn_targets_and_begin_with_0() -> None:
    weights, batch = drawn_weights(2, INPUTS, len(STEPS), seed=7), a_batch()
    optimizer, before = AdamW(weights), float(loss(weights, batch, STEPS))
    stoch = Models(weights).observed(batch.deter, batch.seen)
    assert 0.0 == float(Models(weights).answers(batch.deter, stoch, batch.actions[0], STEPS).norm())
    for _ in range(15):
        optimizer.step(gradients(weights, batch, STEPS), 3e-3, 0.0)
    assert float(loss(weights, batch, STEPS)) < 0.3 * before


@pytest.mark.parametrize("saved_after", [0, 130, 171, 299])
def test_it_goes_on_from_its_state_bit_for_bit(saved_after: int) -> None:
    losses = course(330)
    whole, after = fed(losses), fed([])
    after.load_state_dict(fed(losses[:saved_after]).state_dict())
    for each in losses[saved_after:]:
        after.take(each)
    assert whole.outcome(40) == after.outcome(40)
    for one, other in zip(whole.ensemble.weights, after.ensemble.weights, strict=True):
        assert one.equal(other)


def test_it_learns_and_draws_no_random_number_of_torch() -> None:
    before = torch.get_rng_state()
    one, other = fed(course(330)), fed(course(330), seed=4)
    assert before.equal(torch.get_rng_state())
    assert one.optimizer.steps > 0
    assert not one.ensemble.weights.recurrent.equal(other.ensemble.weights.recurrent)
    assert float(one.ensemble.weights.readout.norm()) > 0.0


def test_a_question_changes_nothing() -> None:
    asked, other = fed(course(300)), fed(course(300))
    for follower in (asked, other):
        follower.catch_up()
    for horizon in (10, 23, 40):
        assert asked.outcome(horizon) is not None
    one, two = asked.state_dict(), other.state_dict()
    assert one["trusts"] == two["trusts"]
    torch.testing.assert_close(one["memory"], two["memory"], rtol=0, atol=0, equal_nan=True)


def test_questions_cost_no_gradient_steps() -> None:
    asked = fed([])
    for each in course(330):
        asked.take(each)
        asked.forecast(40)
    assert 0 < asked.optimizer.steps <= 330 // QUICK.every // AT_ONCE


def test_what_it_holds_does_not_grow_with_the_run() -> None:
    follower, sizes = fed([]), []
    for each in course(600):
        follower.take(each)
        sizes.append(follower.bytes)
    assert max(sizes[:300]) == max(sizes[300:])
    memory = follower.memory
    tensors = (memory.updates, memory.seen, memory.actions, memory.targets, *memory.states.tensors)
    models = follower.optimizer
    tensors += (*models.weights, *models.means, *models.squares, follower.centre, follower.scale)
    assert sum(each.nbytes for each in tensors) == follower.learned_bytes


def test_steps_without_a_step_after_them_are_not_learned_from() -> None:
    follower = fed(course(200))
    memory, span = follower.memory, QUICK.span
    places = memory.learnable(span)
    assert len(places)
    assert bool((memory.updates[places] + span == memory.updates[(places + 1) % memory.size]).all())
    memory.updates[memory.newest] += 1
    assert memory.newest - 1 not in memory.learnable(span).tolist()
