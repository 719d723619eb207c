"""Backwards off the beaten track have the resident gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed import (
    DEVICE,
    WAYS,
    assert_same,
    batch_of,
    blocks_of,
    different,
    optimizer_of,
    slow_lane,
    train,
)
from torch import nn
from torch.nn import functional
from zoo_blocks import linear, odd, stacked
from zoo_layers import Stack

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

PLAIN = stacked(linear)
MORE = {**WAYS, "graph": {"mode": "graph"}, "graph, device": {"mode": "graph", "on_device": True}}


def dropped(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + functional.dropout(block.linear(x), 0.5, block.training)


@pytest.mark.parametrize("way", MORE)
def test_a_use_whose_result_is_left_alone(way: str) -> None:
    def call(model: Any, step: int) -> torch.Tensor:
        model.blocks[3](batch_of(50 + step).requires_grad_())
        return model(batch_of(step))

    assert_same(train(PLAIN, None, call=call), train(PLAIN, MORE[way], call=call))


@pytest.mark.parametrize("way", MORE)
def test_a_model_set_to_evaluate_before_the_backward(way: str) -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        model.train()
        loss = model(batch_of(step))
        model.eval()
        with torch.no_grad():
            model(batch_of(9))
        return loss

    make = stacked(dropped)
    assert_same(train(make, None, call=call, steps=5), train(make, MORE[way], call=call, steps=5))


@pytest.mark.parametrize("way", MORE)
def test_gradients_of_inputs_alone_leave_the_parameters_as_they_are(way: str) -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        x = batch_of(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x), x)
        return model(x.detach() + 0.1 * slope.sign())

    assert_same(train(PLAIN, None, call=call), train(PLAIN, MORE[way], call=call))


def test_two_uses_in_a_row_whose_gradients_arrive_one_after_the_other() -> None:
    """On a GPU each use has an accumulator of its own, as the parameter was elsewhere between."""
    model = PLAIN()
    streaming = Streaming(
        model, blocks_of(model), optimizer_of(model), DEVICE, StreamingSettings(mode="graph")
    )
    block = streaming.blocks[1]
    for value in (1.0, 2.0):
        block.parameters[0].grad = torch.full_like(block.parameters[0], value)
        streaming.gradients.arrived(block, 0)
    streaming.gradients.flush()
    assert torch.equal(torch.full_like(block.parameters[0], 3.0), block.parameters[0].grad)
    streaming.close()


@pytest.mark.parametrize("way", ["graph", "graph, device"])
def test_two_backwards_of_one_graph_where_it_is_kept(way: str) -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        loss = model(batch_of(step))
        loss.backward(retain_graph=True)
        return loss

    assert_same(train(PLAIN, None, call=call), train(PLAIN, MORE[way], call=call))


@pytest.mark.parametrize("way", [way for way in MORE if "in backward" not in way])
def test_two_forwards_and_then_their_backwards_in_either_order(way: str) -> None:
    def trained(settings: dict[str, Any] | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = PLAIN().to(DEVICE)
        optimizer = optimizer_of(model)
        streaming = None
        if settings is not None:
            chosen = StreamingSettings(poison=True, **settings)
            streaming = Streaming(
                model, blocks_of(model), optimizer, DEVICE, chosen, lanes=slow_lane
            )
        for step in range(4):
            losses = [model(batch_of(2 * step + part)) for part in range(2)]
            for loss in losses[:: 1 if step % 2 else -1]:
                loss.backward()
                if streaming is not None:
                    streaming.gradients.flush()
            if streaming is None:
                optimizer.step()
            else:
                streaming.step()
                streaming.gradients.drop()
            optimizer.zero_grad()
        if streaming is not None:
            streaming.close()
        return {name: value.clone() for name, value in model.state_dict().items()}

    assert [] == different(trained(None), trained(MORE[way]))


@pytest.mark.parametrize("way", MORE)
def test_hooks_on_parameters_see_each_gradient(way: str) -> None:
    def make() -> nn.Module:
        model = PLAIN()
        for parameter in model.blocks.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return model

    assert_same(train(make, None), train(make, MORE[way]))


@pytest.mark.parametrize("way", MORE)
def test_a_tied_weight_whose_first_block_is_never_used(way: str) -> None:
    class Tied(Stack):
        def __init__(self) -> None:
            super().__init__(odd(linear))
            self.blocks[2].linear.weight = self.blocks[0].linear.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks[1:]:
                x = block(x)
            return self.head(x).square().mean()

    assert_same(train(Tied, None), train(Tied, MORE[way]))
