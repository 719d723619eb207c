"""A backward that updates blocks and ends with an error tells which part of the update is done."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> Any:
        msg = f"no gradient of {len(gradients)}"
        raise ArithmeticError(msg)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.fails_before = -1

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            given = _Raises.apply(given) if place == self.fails_before else given
            given = block(given)
        return given


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


@pytest.mark.parametrize(
    ("update", "fails", "told"),
    [
        ("in_backward", 2, ["updated=4"]),
        ("in_backward", 4, []),
        ("after_backward", 2, []),
    ],
)
def test_an_error_in_a_backward_tells_of_the_weights_that_it_has_updated(
    update: str, fails: int, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    net = _Net().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    config = {"plugins": {"layer-streaming": {"update": update}}}
    with HybridTrainer(net, optimizer, loss_fn=_loss, config=config) as trainer:
        batch = torch.ones(2, 4, device=DEVICE)
        trainer.step(batch)
        before = [one.detach().clone() for one in net.parameters()]
        net.fails_before = fails
        with caplog.at_level(logging.WARNING, "neaptide"):
            if fails < len(net.blocks):
                with pytest.raises(ArithmeticError):
                    trainer.step(batch)
            else:
                trainer.step(batch)
        changed = sum(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    lines = [one.message for one in caplog.records if "half_updated" in one.message]
    assert [part in line for part, line in zip(told, lines, strict=True)] == [True] * len(told)
    expected = 8 if fails == len(net.blocks) else 4 * (update == "in_backward")
    assert changed == expected
