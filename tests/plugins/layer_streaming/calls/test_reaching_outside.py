"""What a block takes from outside without being passed it, or hands out without returning it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed import (
    DEVICE,
    assert_close,
    refusal,
    train,
)
from torch import nn
from zoo_blocks import Passed, odd
from zoo_layers import WIDTH


def test_a_tensor_handed_out_by_an_attribute_is_refused() -> None:
    def aside(block: Any, x: torch.Tensor) -> torch.Tensor:
        y = block.linear(x)
        block.loss = y.square().mean()
        return x + y

    class WithLosses(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + sum(block.loss for block in self.blocks)

    line = refusal(lambda: WithLosses(odd(aside)))
    assert "is used outside without being returned" in line
    assert "mode = 'graph'" in line


def captured(make_tensor: Any) -> Any:
    class Capturing(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = make_tensor(self, x)
            for block in self.blocks:
                block.held = [held]
            return super().forward(x)

    return lambda: Capturing(odd(lambda block, x: x + block.linear(x) * block.held[0]))


def test_what_a_block_captures_is_right_or_refused() -> None:
    make = captured(lambda model, x: model.first(x).exp().mean(0, keepdim=True))
    for settings in ({"micro_batches": 2}, {}):
        assert "captures" in refusal(make, **settings)


def test_what_a_block_uses_of_a_parameter_outside_is_right() -> None:
    class Reaching(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                block.reached = [self.first.weight]
            return super().forward(x)

    def make() -> nn.Module:
        return Reaching(odd(lambda block, x: x + block.linear(x) @ block.reached[0]))

    resident = train(make, None, steps=1)
    assert_close(resident, train(make, {}, steps=1))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_block_whose_own_hook_makes_its_weight(kind: str) -> None:
    class Hooked(nn.Linear):
        def unpack(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def make() -> nn.Module:
        return Passed(lambda: getattr(nn.utils, kind)(Hooked(WIDTH, WIDTH)))

    # On a GPU the hook computes in RAM, and the block cannot use what comes out.
    assert ("captures" if DEVICE.type == "cpu" else "is used outside") in refusal(make)
