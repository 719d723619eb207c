"""The bandit alone: its equations, its regret on laws that are known, its state."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_plugins.adaptive_phases.linucb import LinUcb

ARMS, SIZE, NOISE = 4, 3, 0.1


def context(generator: torch.Generator) -> torch.Tensor:
    drawn = 2.0 * torch.rand(SIZE - 1, generator=generator, dtype=torch.float64, device="cpu") - 1.0
    return torch.cat([drawn.new_ones(1), drawn])


def generator(seed: int) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(seed)


def played(
    theta: torch.Tensor, seed: int, rounds: int, bandit: LinUcb | None = None
) -> tuple[float, float, list[int]]:
    """Return the regrets against the best arm of each context and the best fixed arm, and the arms.

    The reward of arm a in context x is `theta[a] . x` and normal noise. Regrets are of the means.
    """
    bandit = bandit or LinUcb(ARMS, SIZE, exploration=1.0, ridge=1.0)
    draw, means, arms = generator(seed), [], []
    for _ in range(rounds):
        x = context(draw)
        rewards = theta @ x
        arm = bandit.choose(x)
        noise = float(torch.randn((), generator=draw, dtype=torch.float64, device="cpu"))
        bandit.learn(arm, x, float(rewards[arm]) + NOISE * noise)
        means.append(rewards)
        arms.append(arm)
    table = torch.stack(means)
    got = table[range(rounds), arms].sum()
    return float(table.amax(1).sum() - got), float(table.sum(0).max() - got), arms


@settings(max_examples=8)
@given(st.integers(0, 10_000))
def test_the_regret_is_within_the_papers_order(seed: int) -> None:
    """At most sqrt(K d T) for K arms and d features: 69; a random choice has 168 on average."""
    theta = torch.rand(ARMS, SIZE, generator=generator(seed + 1), dtype=torch.float64, device="cpu")
    rounds = 400
    regret, _, arms = played(theta, seed, rounds)
    assert regret <= math.sqrt(ARMS * SIZE * rounds)
    assert set(range(ARMS)) == set(arms)


@settings(max_examples=8)
@given(st.integers(0, 10_000), st.integers(0, ARMS - 1))
def test_where_one_length_is_best_it_is_found(seed: int, best: int) -> None:
    """Regret against the best fixed length: at most 40 rounds' worth of the gap, of 400."""
    theta = torch.zeros(ARMS, SIZE, dtype=torch.float64, device="cpu")
    theta[best, 0] = 0.5
    _, regret, arms = played(theta, seed, 400)
    assert 0.0 <= regret <= 40 * 0.5
    assert arms[-100:].count(best) >= 90


def test_where_the_best_length_depends_on_the_context_no_fixed_length_is_as_good() -> None:
    theta = torch.zeros(ARMS, SIZE, dtype=torch.float64, device="cpu")
    theta[0, 1], theta[3, 1] = 0.5, -0.5
    _, regret, _ = played(theta, 3, 400)
    assert regret < -50.0  # of at most -100: the mean of |x| is a half


def test_the_score_is_that_of_the_paper() -> None:
    bandit, x = LinUcb(2, 2, 0.7, 1.0), torch.tensor([1.0, -2.0], dtype=torch.float64)
    y = torch.tensor([0.5, 1.0], dtype=torch.float64)
    bandit.learn(1, y, 3.0)
    inverse = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + torch.outer(y, y))
    expected = float((inverse @ (3.0 * y)) @ x + 0.7 * (x @ inverse @ x).sqrt())
    first, second = bandit.scores(x)
    assert pytest.approx(0.7 * math.sqrt(5.0)) == first
    assert pytest.approx(expected) == second
    assert bandit.bytes == (2 * 4 + 2 * 2) * 8


@given(st.lists(st.floats(-1, 1), min_size=SIZE - 1, max_size=SIZE - 1), st.floats(-1, 0.8))
def test_no_good_length_keeps_another_untried(rest: list[float], reward: float) -> None:
    """Rewards are at most 1, and a context begins with 1, so an untried arm has a score of 1."""
    bandit = LinUcb(ARMS, SIZE, exploration=1.0, ridge=1.0)
    x = torch.tensor([1.0, *rest], dtype=torch.float64, device="cpu")
    arms = []
    while len(set(arms)) < ARMS and len(arms) < 25 * ARMS:
        arms.append(bandit.choose(x))
        bandit.learn(arms[-1], x, reward)
    assert set(range(ARMS)) == set(arms)


def test_its_state_goes_on_bit_for_bit() -> None:
    theta = torch.rand(ARMS, SIZE, generator=generator(5), dtype=torch.float64, device="cpu")
    one = LinUcb(ARMS, SIZE, 1.0, 1.0)
    played(theta, 1, 40, one)
    other = LinUcb(ARMS, SIZE, 1.0, 1.0)
    other.load_state_dict(one.state_dict())
    assert played(theta, 2, 40, one) == played(theta, 2, 40, other)
    assert torch.equal(one.products, other.products)
    assert torch.equal(one.sums, other.sums)
