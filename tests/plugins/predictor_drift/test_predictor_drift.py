from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide import HybridTrainer
from neaptide_plugins.predictor_drift.drift_coefficients import half_at, reach, share_of
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

WINDOWS = st.tuples(st.integers(1, 6), st.integers(1, 4))
"""(samples in a half, sample_every)."""


def drift(weights: list[torch.Tensor]) -> torch.Tensor:
    """Return the coefficients' sum of all weights."""
    shares = [share_of(index, len(weights)) for index in range(len(weights))]
    return sum(
        (share * weight for share, weight in zip(shares, weights, strict=True)),
        start=torch.zeros(3),
    )


def path(steps: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(steps, 3, generator=generator).cumsum(dim=0))


@given(st.integers(1, 12), st.integers(0, 99))
def test_the_sum_is_the_mean_of_the_second_half_minus_that_of_the_first(
    half: int, seed: int
) -> None:
    weights = path(2 * half, seed)
    first, second = weights[:half], weights[half:]
    expected = torch.stack(second).mean(0) - torch.stack(first).mean(0)
    torch.testing.assert_close(drift(weights), expected)


@given(st.integers(1, 12), st.integers(0, 99))
def test_it_is_a_sum_of_updates_with_triangular_weights(half: int, seed: int) -> None:
    weights = path(2 * half, seed)
    # The update that leads to sample number k (from 1) weighs min(k - 1, 2 * half - k + 1) / half.
    updates = [after - before for before, after in itertools.pairwise(weights)]
    triangle = [min(k, 2 * half - k) / half for k in range(1, 2 * half)]
    expected = sum(
        (share * update for share, update in zip(triangle, updates, strict=True)),
        start=torch.zeros(3),
    )
    torch.testing.assert_close(drift(weights), expected)


@given(
    st.integers(0, 5000), st.floats(0.05, 0.9), st.integers(4, 300), st.integers(0, 600), WINDOWS
)
def test_a_window_is_a_share_of_the_run_within_its_limits(
    update: int, fraction: float, shortest: int, more: int, lengths: tuple[int, int]
) -> None:
    every = lengths[1]
    half = half_at(update, fraction, shortest, shortest + more, every)
    assert half >= 1
    assert abs(
        2 * half * every - min(max(update * fraction / (1 - fraction), shortest), shortest + more)
    ) <= (2 * every)
    assert half_at(update, fraction, shortest, shortest + more, every, 2.0) >= 2 * half - 1


@given(st.floats(0.05, 3.0), st.integers(1, 200), st.integers(1, 100))
def test_a_jump_never_reaches_further_than_asked(scale: float, half: int, horizon: int) -> None:
    share, reached = reach(half, scale, horizon)
    assert 1 <= reached <= horizon
    assert share <= scale
    assert share * half <= horizon + 1e-9


def run(steps: int, **settings: Any) -> tuple[list[Any], HybridTrainer]:
    task = tiny_task()
    config = {
        "phases": {
            "warmup": {"steps": 2},
            "full": {"steps": 4},
            "predict": {"max_horizon": 3, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 2},
        },
        "plugins": {"predictor-drift": {"sample_every": 1, "min_window": 8, **settings}},
    }
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        return [trainer.step(batch) for batch in task.batches[:steps]], trainer


def test_nothing_is_proposed_before_the_window_is_full() -> None:
    results, _ = run(31)
    first = next(result for result in results if result.jump is not None)
    # Two updates of Warmup, then a window of eight; asked after six updates and after ten.
    assert 11 == first.step
    # Half the distance between halves of four updates.
    assert 2 == first.jump.horizon


def test_a_new_window_begins_after_each_jump() -> None:
    results, trainer = run(31)
    steps = [result.step for result in results if result.jump is not None]
    assert len(steps) >= 2
    assert all(after - before >= 8 for before, after in itertools.pairwise(steps))
    assert trainer.state.predicted == sum(
        result.jump.horizon for result in results if result.was_predicted
    )


@pytest.mark.parametrize("settings", [{"min_window": 50, "max_window": 20}, {"scale": 1.5}])
def test_settings_that_contradict_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"@ plugins\.predictor-drift\."):
        run(1, **settings)
