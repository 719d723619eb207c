"""Predictors beside an adapter: few trainable weights in several groups, the rest frozen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import CYCLE, same_tensors
from torch import nn

from neaptide import HybridTrainer
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE

PREDICTORS: dict[str, dict[str, Any]] = {
    "predictor-dmd": {"snapshots": 4, "rank": 2},
    "predictor-drift": {"min_window": 4, "max_window": 4},
    "predictor-extrapolate": {"samples": 4},
    "predictor-momentum": {"samples": 4},
}
NAMES = sorted(PREDICTORS)
COMPANY: dict[str, dict[str, Any]] = {
    "delayed-verdict": {"budget": 1.0},
    "dynamics-linear": {},
    "ema": {},
    "residual-correction": {},
}
STEPS = 40


class Adapted(nn.Module):
    """A frozen matrix, and a trainable product of two thin ones (LoRA, arXiv 2106.09685)."""

    def __init__(self, width: int = 12, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)
        self.idle = nn.Parameter(torch.ones(width))  # trainable, and in no group
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x)) * self.idle.detach()


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def trained(name: str, plugins: dict[str, Any], *more: Any) -> tuple[list[Any], Adapted]:
    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.AdamW(
        [
            {"params": model.down.parameters(), "lr": 1e-2, "weight_decay": 0.1},
            {"params": model.up.parameters(), "lr": 3e-2, "betas": (0.8, 0.9)},
        ]
    )
    wanted = torch.randn(12, 12)
    xs = torch.randn(STEPS, 16, 12)
    batches = [{"x": x, "y": x @ wanted} for x in xs]
    table = {"sample_every": 1, **PREDICTORS[name]}
    config = {"phases": CYCLE, "plugins": {name: table, **plugins}}
    with HybridTrainer(
        model, optimizer, loss_fn=loss_of, config=config, plugins=list(more)
    ) as trainer:
        return [trainer.step(batch) for batch in batches], model


@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_optimizer_moves_is_moved(name: str) -> None:
    torch.manual_seed(0)
    first = Adapted().state_dict()
    results, model = trained(name, COMPANY)
    assert sum(result.was_predicted for result in results) >= 2
    for key, value in model.state_dict().items():
        assert torch.isfinite(value).all()
        moves = key.startswith(("down", "up"))
        assert moves != torch.equal(first[key], value)


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_stepped_the_same_bits_wherever_weights_are(name: str) -> None:
    expected, here = trained(name, {})
    found, there = trained(name, {}, HOSTILE_STORE)
    assert [each.was_predicted for each in expected] == [each.was_predicted for each in found]
    assert same_tensors(here.state_dict(), there.state_dict())
