"""The ideas that are kept for their negative results do what their page says that they do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
WALKS, STEPS = 4000, 40
"""Weights, and samples in each half of a window."""


@pytest.fixture
def shrinking(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH / "predictions" / "tried")
    return importlib.import_module("neaptide_tried.shrinking")


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("predictions.learning")


def jump_of(walk: torch.Tensor) -> torch.Tensor:
    """Return half of the drift between the halves of a walk, `[steps, weights]`."""
    return 0.5 * (walk[STEPS:].mean(0) - walk[:STEPS].mean(0))


def test_a_random_walk_is_shrunk_to_little_and_a_steady_drift_is_kept(shrinking: Any) -> None:
    steps = torch.randn(2 * STEPS, WALKS, generator=torch.Generator().manual_seed(0))
    square = torch.ones(WALKS)
    walk, steady = jump_of(steps.cumsum(0)), jump_of((steps + 2.0).cumsum(0))

    noise = square * (STEPS / 2) / 3
    assert walk.square().mean().item() == pytest.approx(noise.mean().item(), rel=0.1)
    assert shrinking.by_steps(walk, square, STEPS / 2).norm() < 0.6 * walk.norm()
    assert shrinking.by_steps(steady, square, STEPS / 2).norm() > 0.9 * steady.norm()


def test_a_spectrum_of_noise_is_shrunk_to_nothing_and_a_direction_is_kept(shrinking: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 4, 25, generator=generator)
    direction = torch.outer(torch.ones(60), torch.ones(100)).view(60, 4, 25)

    kept = shrinking.by_spectrum(noise + direction)

    assert shrinking.by_spectrum(noise).norm() < 0.2 * noise.norm()
    assert (kept - direction).norm() < 0.3 * noise.norm()
    assert torch.equal(noise[0, 0], shrinking.by_spectrum(noise[0, 0]))


def test_the_network_learns_a_straight_line_and_proposes_as_much_of_the_negative(
    learning: Any,
) -> None:
    speed = torch.randn(60, generator=torch.Generator().manual_seed(0))
    samples = torch.arange(400)[:, None] * speed
    history, progress, change = learning.examples(samples, [20, 40])

    ahead = learning.AHEAD * learning.PARTS
    assert torch.allclose(change, -history[:, -1] * ahead, rtol=0.15, atol=0.05)
    network = learning.Proposer()
    assert torch.allclose(network(history, progress), -network(-history, progress))


def test_each_epoch_has_each_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    finetuning = importlib.import_module("predictions.finetuning")
    batches = finetuning.EpochBatches(torch.arange(12)[:, None], 4, 0)

    epochs = [
        [batches.batch(3 * epoch + i)["tokens"].flatten() for i in range(3)] for epoch in range(2)
    ]

    first, second = (torch.cat(epoch).tolist() for epoch in epochs)
    assert list(range(12)) == sorted(first) == sorted(second)
    assert first != second
