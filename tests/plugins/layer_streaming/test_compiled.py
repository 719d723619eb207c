"""Blocks that torch.compile has compiled: as many compilations as resident, and as exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed import DEVICE, WAYS, assert_same, batch_of, train
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from zoo_blocks import linear, stacked
from zoo_layers import WIDTH, Stack

from neaptide import ConfigError, HybridTrainer

pytestmark = pytest.mark.filterwarnings("ignore")

GRAPH: dict[str, dict[str, Any]] = {
    "graph": {"mode": "graph"},
    "graph, device": {"mode": "graph", "on_device": True},
}


class Block(nn.Module):
    """Compiles to one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def compiled(backend: Any) -> nn.Module:
    net = Stack(Block, 12)
    for block in net.blocks:
        block.compile(backend=backend)
    return net


def trained(way: dict[str, Any] | None) -> tuple[Any, int]:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return train(lambda: compiled(counter), way), counter.frame_count


def test_twelve_compiled_blocks_share_one_graph() -> None:
    resident, there = trained(None)
    for way in WAYS.values():
        found, here = trained(way)
        assert_same(resident, found)
        assert here <= max(2, there)


def test_cuda_graphs_are_refused() -> None:
    net = Stack(Block)
    for block in net.blocks:
        block.compile(mode="reduce-overhead")
    with pytest.raises(ConfigError, match="CUDA graphs") as caught:
        HybridTrainer(
            net, loss_fn=lambda model, x: model(x), config={"plugins": {"layer-streaming": {}}}
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_is_compiled_as_a_whole(way: str) -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        return torch.compile(model, backend="aot_eager")(batch_of(step))

    torch._dynamo.reset()
    resident = train(lambda: Stack(Block), None, call=call)
    torch._dynamo.reset()
    assert_same(resident, train(lambda: Stack(Block), WAYS[way], call=call))


@pytest.mark.parametrize("way", GRAPH)
def test_a_model_compiled_as_a_whole_whose_graph_is_kept(way: str) -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        return torch.compile(model, backend="aot_eager")(batch_of(step))

    plain = stacked(linear)
    torch._dynamo.reset()
    resident = train(plain, None, call=call)
    torch._dynamo.reset()
    assert_same(resident, train(plain, GRAPH[way], call=call))


def lowered(model: nn.Module, step: int) -> torch.Tensor:
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return model(batch_of(step))


@pytest.mark.parametrize("way", WAYS)
def test_autocast_sees_the_newest_weights(way: str) -> None:
    resident = train(lambda: Stack(Block), None, call=lowered, steps=4)
    assert_same(resident, train(lambda: Stack(Block), WAYS[way], call=lowered, steps=4))
