"""A backward that cannot be right ends in a line: made twice, differentiated, or of old weights."""

from __future__ import annotations

import pytest
import torch
from streamed import (
    DEVICE,
    WAYS,
    assert_same,
    batch_of,
    blocks_of,
    optimizer_of,
    slow_lane,
    train,
)
from torch import nn
from zoo_blocks import linear, odd, stacked
from zoo_layers import Stack

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

PLAIN = stacked(linear)
MORE = {**WAYS, "graph": {"mode": "graph"}, "graph, device": {"mode": "graph", "on_device": True}}


class Ending(Stack):
    """What comes out of its last block is summed: that gradient depends on nothing."""

    def __init__(self) -> None:
        super().__init__(odd(lambda block, x: x + block.linear(x).tanh()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def penalized(model: nn.Module, step: int) -> torch.Tensor:
    x = batch_of(step).requires_grad_()
    loss = model(x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + slope.square().sum()


@pytest.mark.parametrize("way", WAYS)
def test_a_second_derivative_ends_in_a_line_with_a_way_out(way: str) -> None:
    for make in (PLAIN, Ending):
        with pytest.raises(RuntimeError, match=r"block 'blocks\.\d' is differentiated twice") as it:
            train(make, WAYS[way], call=penalized)
        assert "\n" not in str(it.value)
        assert "mode = 'graph'" in str(it.value)


@pytest.mark.parametrize("way", ["graph", "graph, device"])
def test_a_second_derivative_where_the_graph_is_kept(way: str) -> None:
    for make in (PLAIN, Ending):
        resident = train(make, None, call=penalized)
        assert_same(resident, train(make, MORE[way], call=penalized))


def test_a_second_derivative_is_refused() -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        x = batch_of(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        return slope.square().sum()

    with pytest.raises(RuntimeError) as caught:
        train(PLAIN, {}, call=call)
    assert "\n" not in str(caught.value)


def test_a_second_backward_is_refused() -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        loss = model(batch_of(step))
        loss.backward(retain_graph=True)
        return loss

    with pytest.raises(RuntimeError, match=r"block 'blocks\.3' is run backward a second time"):
        train(PLAIN, {}, call=call)


@pytest.mark.parametrize("way", MORE)
def test_weights_that_an_update_has_changed_since_the_forward(way: str) -> None:
    torch.manual_seed(0)
    model = Ending()
    streaming = Streaming(
        model,
        blocks_of(model),
        optimizer_of(model),
        DEVICE,
        StreamingSettings(poison=True, **MORE[way]),
        lanes=slow_lane,
    )
    first, second = model(batch_of(0)), model(batch_of(1))
    first.backward()
    streaming.gradients.flush()
    streaming.step()
    with pytest.raises(RuntimeError, match=r"block 'blocks\.\d'.* changed") as caught:
        second.backward()
    assert "\n" not in str(caught.value)
    streaming.close()
