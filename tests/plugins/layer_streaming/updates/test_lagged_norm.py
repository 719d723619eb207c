"""Lagged clipping uses the norm of the last update, whatever happens between two updates."""

from __future__ import annotations

import pytest

from neaptide import HybridTrainer
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

LAGGED = {"update": "in_backward", "clip": "lagged"}


def test_the_norm_outlasts_jumps_evaluations_and_zeroed_gradients() -> None:
    task = tiny_task()
    config = {
        "phases": {"warmup": {"steps": 2}, "full": {"steps": 3}},
        "train": {"clip_norm": 0.1},
        "plugins": {"layer-streaming": LAGGED},
    }
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=tiny_loss, config=config, plugins=[STEADY_PREDICTOR]
    ) as trainer:
        applying = trainer.store.streaming.applying  # type: ignore[attr-defined]
        jumps = 0
        before = None
        for batch in task.batches[:14]:
            trainer.store.zero_gradients()
            assert applying.state_dict()["last_norm"] == before
            result = trainer.step(batch)
            jumps += result.jump is not None
            before = applying.state_dict()["last_norm"]
            assert result.grad_norm == pytest.approx(float(before))
            trainer.evaluate(task.batches[14:16])
    assert jumps


def test_a_rollback_forgets_the_norm() -> None:
    check_plugin("layer-streaming", LAGGED, laws=["rollback-is-forgotten"])
