"""Blocks that come in another order each time have their weights all the same."""

from __future__ import annotations

import pytest
import torch
from streamed import (
    assert_same,
    train,
)
from zoo_blocks import linear, odd
from zoo_layers import Stack


class Ordered(Stack):
    """Goes through its blocks in an order of its own at each call, and leaves some out."""

    def __init__(self) -> None:
        super().__init__(odd(linear), 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        order = torch.randperm(len(self.blocks))[: int(torch.randint(2, 7, ()))].tolist()
        for index in order:
            x = self.blocks[index](x)
        return self.head(x).square().mean()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_blocks_come_in_any_order(slots: int) -> None:
    way = {"max_active_layers": slots, "prefetch_distance": slots // 2}
    resident = train(Ordered, None, steps=12)
    assert_same(resident, train(Ordered, way, steps=12))
    assert_same(resident, train(Ordered, {**way, "on_device": True, "in_backward": True}, steps=12))
