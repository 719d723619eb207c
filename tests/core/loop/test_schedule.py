"""The learning rate, update by update."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_trainer

from neaptide.loop.schedule import LearningRate

rates = st.builds(
    LearningRate,
    name=st.sampled_from(["constant", "linear", "cosine"]),
    warmup_steps=st.integers(0, 20),
    steps=st.integers(1, 100),
)


def test_linear_rises_then_falls_to_zero() -> None:
    rate = LearningRate(name="linear", warmup_steps=3, steps=7)
    expected = [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert expected == [rate.factor(step) for step in range(8)]


def test_cosine_is_half_way_in_the_middle() -> None:
    rate = LearningRate(name="cosine", warmup_steps=0, steps=10)
    assert 1.0 == rate.factor(0)
    assert pytest.approx(0.5) == rate.factor(5)
    assert 0.0 == rate.factor(10)


def test_constant_stays() -> None:
    rate = LearningRate(name="constant", warmup_steps=1, steps=5)
    assert [0.5, 1.0, 1.0, 1.0] == [rate.factor(step) for step in (0, 1, 4, 400)]


@given(rates, st.integers(0, 300))
def test_the_factor_stays_within_zero_and_one(rate: LearningRate, step: int) -> None:
    assert 0.0 <= rate.factor(step) <= 1.0


@given(rates)
def test_the_rate_never_rises_after_the_warmup(rate: LearningRate) -> None:
    factors = [rate.factor(step) for step in range(rate.warmup_steps, rate.warmup_steps + 120)]
    assert sorted(factors, reverse=True) == factors


def test_every_group_moves_from_its_own_rate() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": parameters[:1], "lr": 1.0}, {"params": parameters[1:], "lr": 0.5}], lr=1.0
    )
    rate = LearningRate(name="linear", warmup_steps=0, steps=4)
    for step, factor in ((0, 1.0), (1, 0.75), (2, 0.5)):
        rate.set(optimizer, step)
        assert [factor, factor / 2] == [group["lr"] for group in optimizer.param_groups]


def test_constant_without_warmup_leaves_a_users_scheduler_alone() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.optimizer.param_groups[0]["lr"] = 0.125
        trainer.step(batches[0])
        assert 0.125 == trainer.optimizer.param_groups[0]["lr"]
        assert "initial_lr" not in trainer.optimizer.param_groups[0]


def test_a_run_moves_the_rate_by_updates() -> None:
    config = {"schedule": {"name": "linear"}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    seen = []
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
            seen.append(trainer.optimizer.param_groups[0]["lr"])
    assert [1e-2, 0.75e-2, 0.5e-2, 0.25e-2] == seen
