"""A small model with two groups of rates, trained with a schedule and in a plain loop of torch."""

from __future__ import annotations

from typing import Any

import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer

STEPS = 24


def settings(**given: Any) -> dict[str, Any]:
    """Return a configuration with the plugin."""
    return {"train": {"steps": STEPS}, "plugins": {"lr-schedule": given}}


def two_groups(seed: int = 0, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model, and an optimizer with two groups of other rates."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)
    groups = [
        {"params": model[0].parameters()},
        {"params": model[2].parameters(), "lr": 0.003, "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01, **options)


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the outputs."""
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def batches() -> list[torch.Tensor]:
    """Return the same batches at each call, one for each update."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 4, generator=generator).to(DEVICE) for _ in range(STEPS)]


def in_a_plain_loop(make: Any, **options: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Return rates and weights of a loop of torch with the scheduler that `make` returns."""
    model, optimizer = two_groups(**options)
    scheduler = make(optimizer)
    seen = []
    for batch in batches():
        loss_fn(model, batch).backward()
        seen.append([(float(group["lr"]), group["betas"]) for group in optimizer.param_groups])
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return seen, model.state_dict()


def in_a_run(given: dict[str, Any], **options: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Return rates and weights of a run with the plugin."""
    model, optimizer = two_groups(**options)
    seen = []
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        for batch in batches():
            trainer.step(batch)
            seen.append([(float(group["lr"]), group["betas"]) for group in optimizer.param_groups])
    return seen, model.state_dict()


def assert_same(one: Any, other: Any) -> None:
    """Assert that rates and weights are the same to the bit."""
    assert one[0] == other[0]
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def rates_of(trainer: HybridTrainer, some: list[Any]) -> list[list[float]]:
    """Train on `some` batches; return the rates of all groups, one list for each update."""
    seen = []
    for batch in some:
        trainer.step(batch)
        seen.append([float(group["lr"]) for group in trainer.optimizer.param_groups])
    return seen
