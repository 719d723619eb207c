"""Every predictor's jumps are corrected, with the same bits wherever the weights are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import CYCLE, same_tensors, tensors_of, tiny_trainer

from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE

PREDICTORS: dict[str, dict[str, Any]] = {
    "predictor-dmd": {"snapshots": 4, "rank": 2},
    "predictor-drift": {"min_window": 4, "max_window": 4},
    "predictor-extrapolate": {"samples": 4},
    "predictor-momentum": {"samples": 4},
}
"""Settings with windows of four samples."""
CORRECTION: dict[str, dict[str, Any]] = {"residual-correction": {"observe": 1}}


def trained(
    name: str, *more: Any, **tables: Any
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    plugins = {name: {"sample_every": 1, **PREDICTORS[name]}, **CORRECTION, **tables}
    trainer, batches = tiny_trainer({"phases": CYCLE, "plugins": plugins}, more)
    with trainer:
        results = [trainer.step(batch) for batch in batches[:26]]
        trainer.store.drain()
        found = dict(trainer.hooks.plugins["residual-correction"].collect_metrics())
    return results, tensors_of(trainer.model), found


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_its_jumps_are_corrected_wherever_weights_are(name: str) -> None:
    results, weights, found = trained(name)
    assert sum(result.was_predicted for result in results) >= 2
    assert found["corrected"] >= 1.0
    assert 0.0 < found["share"] <= 0.26  # of the corrected jump: at most 0.2 of the proposed one
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((HOSTILE_STORE,), {}),
        ((), {"layer-streaming": {}}),
        ((), {"optimizer-offload": {}}),
    ]
    for more, tables in ways:
        again, same, told = trained(name, *more, **tables)
        assert [r.was_predicted for r in results] == [r.was_predicted for r in again]
        assert found["corrected"] == told["corrected"]
        assert same_tensors(weights, same)


def test_beside_every_other_judge_and_scheduler() -> None:
    others: dict[str, dict[str, Any]] = {
        "adaptive-phases": {"lengths": [2, 4]},
        "delayed-verdict": {"after": 2, "average": 2, "batches": 2, "budget": 1.0},
        "dynamics-linear": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
        "divergence-monitor": {},
    }
    results, weights, _ = trained("predictor-momentum", **others)
    assert any(result.was_predicted for result in results)
    assert all(torch.isfinite(weight).all() for weight in weights.values())
