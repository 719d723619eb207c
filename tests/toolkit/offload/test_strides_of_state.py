"""A checkpoint has no strides. Loaded state has those of its weight, as a fused step needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "resident": {},
    "in the backward": {"layer-streaming": {"resident": 0, "update": "in_backward"}},
    "in RAM": {"layer-streaming": {"resident": 0, "optimizer_on": "cpu"}},
}


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        given = self.first(given)
        for block in self.blocks:
            given = block(given).tanh()
        return given


def _trainer(way: str) -> HybridTrainer:
    torch.manual_seed(0)
    net = _Net().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    config = {"plugins": WAYS[way]}
    loss = lambda model, batch: model(batch).square().mean()  # noqa: E731 - one call
    return HybridTrainer(net, optimizer, loss_fn=loss, config=config)


@pytest.mark.parametrize("way", WAYS)
def test_a_fused_step_goes_on_with_loaded_state_of_turned_weights(way: str, tmp_path: Path) -> None:
    random = torch.Generator("cpu").manual_seed(1)
    batches = [torch.randn(2, 3, 8, 8, generator=random).to(DEVICE) for _ in range(6)]
    with _trainer(way) as whole, _trainer(way) as begun, _trainer(way) as resumed:
        for batch in batches:
            whole.step(batch)
        for batch in batches[:3]:
            begun.step(batch)
        begun.save(tmp_path / "saved")
        resumed.load(tmp_path / "saved")
        for batch in batches[3:]:
            resumed.step(batch)
        assert whole.digest() == resumed.digest()
        of = [trainer.optimizer.state.values() for trainer in (whole, resumed)]
        strides = [[one.stride() for state in each for one in state.values()] for each in of]
        assert strides[0] == strides[1]
