"""What a streamed block returns needs a gradient exactly where the module's own output does."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from streamed import DEVICE
from torch import nn

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 8


class Block(nn.Module):
    """Returns a result, a mask that depends on nothing trained, and an input as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(x) * mask, torch.zeros_like(x) + mask, mask, x.argmax(-1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.needs: list[Sequence[bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(x)
        for block in self.blocks:
            x, made, mask, most = block(x, mask)
            self.needs.append([one.requires_grad for one in (x, made, mask, most)])
        return x.square().mean()


@pytest.mark.parametrize("settings", [{}, {"micro_batches": 2}, {"mode": "graph"}])
def test_a_constant_needs_no_gradient(settings: dict[str, object]) -> None:
    model = Net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": {"layer-streaming": settings}}
    with HybridTrainer(
        model, optimizer, loss_fn=lambda model, x: model(x), config=config
    ) as trainer:
        trainer.step(torch.randn(4, WIDTH, device=DEVICE))
    assert [[True, False, False, False]] * 3 == model.needs


class Storing(Block):
    """Stores what it computed last, as a model does for a penalty or for a picture of attention."""

    last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.last = self.linear(x)
        return self.last * mask, mask, mask, x.argmax(-1)


@pytest.mark.parametrize("settings", [{}, {"micro_batches": 2}, {"update": "in_backward"}])
def test_what_a_block_stored_in_earlier_steps_is_freed(settings: dict[str, object]) -> None:
    model = Net()
    model.blocks = nn.ModuleList(Storing() for _ in range(3))
    optimizer = torch.optim.SGD(model.to(DEVICE).parameters(), lr=0.1)
    config = {"plugins": {"layer-streaming": settings}}
    stored = []
    with HybridTrainer(
        model, optimizer, loss_fn=lambda model, x: model(x), config=config
    ) as trainer:
        for _ in range(6):
            trainer.step(torch.randn(4, WIDTH, device=DEVICE))
            stored.append(weakref.ref(model.blocks[1].last))
    gc.collect()
    assert [False] * 4 == [one() is not None for one in stored[:4]]
