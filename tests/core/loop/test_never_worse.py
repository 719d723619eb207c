"""A run with a predictor that lies ends where a run without one ends, within the seed noise."""

from __future__ import annotations

from functools import cache
from statistics import fmean, stdev
from typing import Any

import pytest
from support import same_tensors, tensors_of

from neaptide import HybridTrainer
from neaptide.run.assembly import build_data
from neaptide_toolkit.testing import LIES, LYING_PREDICTOR

SEEDS = (1, 2, 3, 4)
UNUSABLE = ("infinite", "misshapen", "nan")


def run(
    seed: int, lie: str = "", size: float = 0.03, **predict: Any
) -> tuple[float, list[Any], Any]:
    """Train a small classifier of digits; return its loss, its jumps and its weights."""
    config = {
        "seed": seed,
        "model": {"name": "builtin:mlp", "options": {"width": 32}},
        "data": {"name": "builtin:digits"},
        "train": {"steps": 160, "batch_size": 64, "clip_norm": 1.0},
        "optimizer": {"lr": 3e-3},
        "eval": {"every": 0, "batches": 100},
        "phases": {
            "warmup": {"steps": 20},
            "full": {"steps": 5},
            "predict": {"max_horizon": 20, **predict},
            "correct": {"steps": 5},
        },
        "plugins": {
            "lr-schedule": {"name": "linear", "warmup": 10, "count_jumps": False},
            **({"lying-predictor": {"lie": lie, "size": size}} if lie else {}),
        },
    }
    jumps: list[Any] = []
    with HybridTrainer.from_config(config, plugins=[LYING_PREDICTOR] if lie else []) as trainer:
        data = build_data(trainer.config, trainer.hooks)
        found = trainer.fit(data, observe=lambda result, _: jumps.append(result.jump))
        weights = tensors_of(trainer.model)
    return found["val_loss"], [jump for jump in jumps if jump is not None], weights


@cache
def plain() -> tuple[float, float]:
    """Return mean and standard deviation of the loss without prediction."""
    losses = [run(seed)[0] for seed in SEEDS]
    return fmean(losses), stdev(losses)


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_costs_more_than_the_seed_does(lie: str) -> None:
    mean, noise = plain()
    found = [run(seed, lie) for seed in SEEDS]
    assert all(jumps for _, jumps, _ in found)
    assert fmean(loss for loss, _, _ in found) <= mean + 2 * noise
    if lie in UNUSABLE:
        assert not any(jump.accepted for _, jumps, _ in found for jump in jumps)


@pytest.mark.parametrize("lie", LIES)
def test_with_every_jump_refused_the_run_is_the_run_without(lie: str) -> None:
    expected = run(1)
    loss, jumps, weights = run(1, lie, rise=0.0, halvings=0)
    refused = [jump for jump in jumps if not jump.accepted]
    assert refused
    if len(refused) == len(jumps):
        assert expected[0] == loss
        assert same_tensors(expected[2], weights)
    else:
        assert lie not in UNUSABLE


def test_a_lie_that_is_let_through_ruins_a_run() -> None:
    """What the guard keeps away is there to be kept away."""
    mean, noise = plain()
    loss, jumps, _ = run(1, "random", size=0.5, rise=1e9)
    assert all(jump.accepted for jump in jumps)
    assert loss > mean + 5 * noise
    guarded, _, _ = run(1, "random", size=0.5)
    assert guarded <= mean + 2 * noise
