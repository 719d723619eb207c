"""The rate beside other plugins: streamed weights and the optimizers of this repository."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import CYCLE, DEVICE, same_tensors, tensors_of, tiny_trainer
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from neaptide import HybridTrainer
from neaptide_plugins.lr_schedule.curve import Curve
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

STEPS = 16
WAYS: dict[str, dict[str, Any]] = {
    "cpu": {"optimizer_on": "cpu"},
    "device": {"optimizer_on": "device"},
    "in backward": {"update": "in_backward"},
    "graph": {"mode": "graph"},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "wsd": {"name": "wsd", "warmup": 3, "decay": 0.5},
    "OneCycleLR": {"name": "OneCycleLR"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("way", WAYS)
def test_a_streamed_run_is_the_resident_one_bit_for_bit(way: str, schedule: str) -> None:
    def run(**more: Any) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
        plugins = {"lr-schedule": SCHEDULES[schedule], **more}
        config = {"phases": CYCLE, "train": {"steps": STEPS}, "plugins": plugins}
        trainer, batches = tiny_trainer(config, [STEADY_PREDICTOR])
        losses, rates = [], []
        with trainer:
            for batch in batches[:STEPS]:
                losses.append(trainer.step(batch).loss)
                rates.append(trainer.optimizer.param_groups[0]["lr"])
            trainer.store.drain()
            with trainer.store.compute():
                weights = tensors_of(trainer.model)
        return losses, rates, weights

    losses, rates, weights = run()
    found, same, streamed = run(**{"layer-streaming": WAYS[way]})
    assert len(set(rates)) > STEPS // 3
    assert rates == same
    assert losses == found
    assert same_tensors(weights, streamed)


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize(
    "optimizer",
    [
        "adamw",
        "sgd",
        "adam8bit",
        "muon",
        "lion",
        "lion8bit",
        "ademamix",
        "adafactor",
        "adam-mini",
        "apollo",
    ],
)
def test_each_optimizer_trains_as_with_a_users_own_scheduler(
    optimizer: str, accumulated: int
) -> None:
    curve = Curve(name="cosine", steps=STEPS, warmup=4, floor=0.1)

    def run(plugins: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)).to(DEVICE)
        generator = torch.Generator().manual_seed(1)
        config = {
            "train": {"steps": STEPS},
            "optimizer": {"name": optimizer, "lr": 0.01},
            "plugins": {"gradient-accumulation": {"steps": accumulated}, **plugins},
        }

        def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = (model(batch) - batch.flip(1)).square().mean()
            return loss

        rates = []
        with HybridTrainer(model, loss_fn=loss_fn, config=config) as trainer:
            own = None if plugins else LambdaLR(trainer.optimizer, curve.factor)
            for _ in range(STEPS):
                trainer.step(torch.randn(6, 16, generator=generator).to(DEVICE))
                rates += [float(group["lr"]) for group in trainer.optimizer.param_groups]
                if own is not None:
                    own.step()
        return rates, tensors_of(model)

    rates, weights = run({"lr-schedule": {"name": "cosine", "warmup": 4, "floor": 0.1}})
    _, own = run({})
    assert len(set(rates)) >= STEPS - 4
    assert same_tensors(own, weights)
