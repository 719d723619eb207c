"""A block that reads its input more often than before, in a graph of as many nodes."""

from __future__ import annotations

from typing import Any

import torch
from support import DEVICE, same_tensors, tensors_of
from torch import nn

from neaptide import HybridTrainer


class Doubling(nn.Module):
    """Doubles its input by one node: of one read, or of two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.twice = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x + x if self.twice else x * 2.0
        found: torch.Tensor = self.linear(doubled)
        return found


def trained(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Train; from the sixth step on the blocks read their input twice."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Doubling() for _ in range(3))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(2, 4, device="cpu").to(DEVICE)

    def loss_fn(net: Any, given: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(given).square().mean()
        return loss

    config = {"plugins": plugins, "phases": {"warmup": {"steps": 0}}}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        for step in range(8):
            for block in model:
                block.twice = step >= 5
            trainer.step(batch)
    return tensors_of(model)


def test_it_trains_as_resident_blocks_do() -> None:
    assert same_tensors(trained({}), trained({"layer-streaming": {}}))
