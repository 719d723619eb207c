"""Where all gradients are in RAM, their norm, check and scale are one call each."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().sum()
    return loss


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))


@pytest.mark.parametrize("scale", [1.0, math.nan])
def test_gradients_in_ram_are_clipped_and_checked_as_by_torch(scale: float) -> None:
    batch = scale * torch.ones(2, 4)
    plain = _net()
    before = [one.detach().clone() for one in plain.parameters()]
    _loss(plain, batch).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    net = _net().to(DEVICE)
    config = {
        "train": {"clip_norm": 0.5},
        "plugins": {"layer-streaming": {"blocks": "*", "optimizer_on": "cpu", "resident": 0}},
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with HybridTrainer(net, optimizer, loss_fn=_loss, config=config) as trainer:
        trainer.step(batch.to(DEVICE))
        now = [one.detach().cpu().clone() for one in net.parameters()]
    for one, then, other in zip(now, before, plain.parameters(), strict=True):
        torch.testing.assert_close(one, then if math.isnan(scale) else other.detach())
