"""Blocks that are not called as such: a part's gradient is told of, containers' contents stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed import DEVICE, different
from torch import nn

from neaptide import HybridTrainer

WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "device": {"optimizer_on": "device", "max_active_layers": 3},
    "in backward": {"update": "in_backward"},
    "graph": {"mode": "graph"},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.part(x)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(x)).tanh()


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


class Parts(Net):
    """Calls a method of one of its blocks, which is not the one that streams."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.blocks[1].part(self.blocks[0](x))
        return self.head(x).square().mean()


class Both(Net):
    """Calls a block, and a part of it by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) + block.layer(x)
        return self.head(x).square().mean()


class Pairs(Net):
    """Its list holds containers, of which only what is in them is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second in self.blocks:
            x = second(first(x))
        return self.head(x).square().mean()


def penalized(*, early: bool) -> Any:
    def loss(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        penalty = sum(p.square().sum() for p in net.parameters()) if early else 0.0
        found = net(x)
        if not early:
            penalty = sum(p.square().sum() for p in net.parameters())
        return found + 0.1 * penalty

    return loss


def called(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x)


def trained(
    make: Any, loss: Any, settings: dict[str, Any] | None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": {} if settings is None else {"layer-streaming": settings}}
    with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
        batches = [torch.full((3, 8), float(step), device=DEVICE) for step in range(3)]
        losses = [trainer.step(batch).loss for batch in batches]
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def blocks() -> list[nn.Module]:
    return [Block() for _ in range(3)]


@pytest.mark.parametrize("way", ["stored", "device", "in backward"])
@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (lambda: Net(blocks()), penalized(early=True)),
        (lambda: Net(blocks()), penalized(early=False)),
        (lambda: Parts(blocks()), called),
        (lambda: Both(blocks()), called),
    ],
    ids=["penalty first", "penalty last", "a part", "a part, too"],
)
def test_a_gradient_from_outside_the_block_is_told(make: Any, loss: Any, way: str) -> None:
    with pytest.raises(RuntimeError, match=r"parameter '.*' of block 'blocks\.\d' .*exclude 'bloc"):
        trained(make, loss, WAYS[way])


def test_a_block_that_is_never_called_is_told_where_the_graph_is_kept() -> None:
    with pytest.raises(RuntimeError, match=r"of block 'blocks\.1' is used outside"):
        trained(lambda: Parts(blocks()), called, WAYS["graph"])


@pytest.mark.parametrize("way", WAYS)
def test_containers_in_a_list_stream_what_is_in_them(way: str) -> None:
    def make() -> nn.Module:
        return Pairs([nn.ModuleList([Block(), nn.Linear(8, 8)]) for _ in range(3)])

    losses, weights = trained(make, called, None)
    found, others = trained(make, called, WAYS[way])
    assert losses == found
    assert [] == different(weights, others)
