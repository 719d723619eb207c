"""State of Python's own, which a block uses: a recomputation finds and leaves it as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from checkpointed import attached
from support import DEVICE
from torch import nn

WIDTH = 8


class Remembering(nn.Module):
    """Scales by what Python's and numpy's generators draw, and by the calls and inputs so far."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls, self.seen = 0, list[float]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(float(x.detach().abs().mean()))
        drawn = random.random() + np.random.random()  # noqa: NPY002 - the global generator is meant
        y = x + self.linear(x).tanh() * (drawn + self.calls % 3 + sum(self.seen))
        return y if random.random() < 0.5 else y * 0.9


class Net(nn.Module):
    """Blocks one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Remembering() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.mark.parametrize(
    "settings", [{"interval": 1}, {"interval": 3}, {"interval": 8, "save_ops": ("matmul",)}]
)
def test_what_a_block_counts_and_draws_in_python_is_the_same_again(settings: Any) -> None:
    left = []
    for patched in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        model = Net().to(DEVICE)
        if patched:
            attached(model, "blocks.*", **settings)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(4):
            x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(step))
            loss = model(x.to(DEVICE))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        counts = [(block.calls, block.seen) for block in model.blocks]
        left.append((losses, counts, random.random(), np.random.random()))  # noqa: NPY002
    assert left[0] == left[1]
