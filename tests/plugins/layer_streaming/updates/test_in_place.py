"""A device that is the host computes with the optimizer's state where it is."""

from __future__ import annotations

import pytest
import torch
from streamed import blocks_of
from torch import nn, optim

from neaptide_plugins.layer_streaming.budget import plan
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_plugins.layer_streaming.tiers.homes import is_the_device

CPU = torch.device("cpu")
ELEMENTS = 2 * 6 * 8
"""Of the matrices of a block."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def made() -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    return model, optim.AdamW(model.parameters(), lr=0.1)


@pytest.mark.parametrize("in_backward", [True, False])
def test_a_step_changes_the_state_that_the_optimizer_shows(*, in_backward: bool) -> None:
    (resident, plain), (model, optimizer) = made(), made()
    settings = StreamingSettings(on_device=True, in_backward=in_backward)
    streaming = Streaming(model, blocks_of(model), optimizer, CPU, settings)
    batch = torch.ones(3, 6)
    try:
        for _ in range(3):
            for net in (resident, model):
                net(batch).square().mean().backward()
            plain.step()
            assert 0 == sum(map(len, streaming.gradients.host.buffers()))
            streaming.gradients.flush()
            streaming.step()
            streaming.gradients.drop()
            plain.zero_grad()
            optimizer.zero_grad()
        assert streaming.updates is not None
        assert [] == streaming.updates.buffers()
        held = {flat.untyped_storage().data_ptr() for flat in streaming.updates.stored()}
        pairs = zip(resident.parameters(), model.parameters(), strict=True)
        for expected, found in pairs:
            for name in ("exp_avg", "exp_avg_sq"):
                moment = optimizer.state[found][name]
                assert torch.equal(plain.state[expected][name], moment)
                assert moment.untyped_storage().data_ptr() in held
    finally:
        streaming.close()
    assert all(map(torch.equal, resident.parameters(), model.parameters()))


def test_the_plan_has_slots_only_for_what_is_copied() -> None:
    model, optimizer = made()
    settings = StreamingSettings(on_device=True, optimizer_slots=3)

    def slots(*, on_disk: bool) -> int:
        in_place = is_the_device(CPU, on_disk=on_disk)
        found = plan(
            blocks_of(model),
            set(),
            optimizer,
            settings,
            adopted=True,
            in_place=in_place,
            staged=False,
        )
        assert "staged gradients" not in found.device
        return found.device.get("optimizer slots", 0)

    assert 0 == slots(on_disk=False)
    assert 3 * 2 * 4 * ELEMENTS <= slots(on_disk=True)
