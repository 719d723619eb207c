"""What the device holds while a jump is judged, by torch's own allocator."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_toolkit.testing.allocations import Allocations, counted
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

WIDTH = 512
WEIGHTS = 2 * 4 * (WIDTH * WIDTH + WIDTH)
PHASES = {"warmup": {"steps": 1}, "full": {"steps": 2}, "correct": {"steps": 1}}


def held(strategy: str | None) -> tuple[int, int]:
    """Return the most bytes held at a probe of Predict, and what the ledger states there."""
    gc.collect()
    config: dict[str, Any] = {"phases": PHASES}
    plugins = [STEADY_PREDICTOR]
    if strategy is not None:
        config["plugins"] = {"optimizer-offload": {"strategy": strategy}}
        plugins.append(SPEC)
    with counted() as allocations:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        trainer = HybridTrainer(
            model,
            torch.optim.Adam(model.parameters(), foreach=False),
            loss_fn=lambda model, batch: functional.mse_loss(model(batch), batch),
            config=config,
            plugins=plugins,
        )
        first: list[bool] = []

        def mark(module: nn.Module, *_: Any) -> None:
            # Before the guard takes its copy of the weights, which is the host's.
            if not module.training and not first:
                first.append(True)
                Allocations.mark("probe")

        model.register_forward_pre_hook(mark)
        batch = torch.ones(2, WIDTH)
        with trainer:
            for _ in range(5):
                trainer.step(batch)
            stated = trainer.estimate_memory("predict").total(tier="device", moment="predict")
        del model, trainer, batch
    (measured,) = allocations.at_marks()["probe"]
    return measured, stated


@pytest.mark.parametrize(("strategy", "least", "most"), [("cpu", 0.6, 0.7), ("drop", 0.6, 0.7)])
def test_two_thirds_are_freed_with_adam(strategy: str, least: float, most: float) -> None:
    before, _ = held(None)
    now, stated = held(strategy)
    assert 3 * WEIGHTS <= before
    assert least <= 1 - now / before <= most
    assert abs(stated - now) <= 0.05 * now


def test_codes_free_about_half() -> None:
    before, _ = held(None)
    now, stated = held("compress")
    assert 0.45 <= 1 - now / before <= 0.5
    assert abs(stated - now) <= 0.05 * now


def test_none_frees_nothing() -> None:
    before, _ = held(None)
    now, stated = held("none")
    assert abs(now - before) <= 0.01 * before
    assert abs(stated - now) <= 0.05 * now
