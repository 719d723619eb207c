"""The gradient of a tensor that several readers share is added in the resident model's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import DEVICE
from support import same_tensors, tensors_of
from torch import nn

from neaptide import HybridTrainer, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 8


class Block(nn.Module):
    """Reads its input as often as it is told, and a second tensor twice."""

    def __init__(self, reads: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.reads = reads

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        found = self.linear(x).tanh() + self.linear(memory).sigmoid() * memory
        for place in range(self.reads):
            found = found + torch.sin(x * (0.1 * place))
        return found


class Growing(Block):
    """Reads its input more often in each call."""

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        self.reads += 1
        return super().forward(x, memory)


class OwnAutocast(Block):
    """Casts its weight by itself, once for two reads."""

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            found = self.linear(self.linear(x).tanh())
        return found.float() + memory * x


class Net(nn.Module):
    """Blocks that all read one tensor, which is read outside of them before and after, too."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        total = x.cos() * x
        for block in self.blocks:
            total = total + block(x, total)
        return total + block(x, x) + x * x.sigmoid()


def tied() -> Callable[[], nn.Module]:
    """Return a maker of blocks with one weight, which the stem is given as well."""
    shared = nn.Linear(WIDTH, WIDTH)

    def make() -> nn.Module:
        block = Block()
        block.linear = shared
        return block

    return make


BLOCKS: dict[str, Callable[[], Callable[[], nn.Module]]] = {
    "three reads": lambda: Block,
    "forty reads": lambda: lambda: Block(40),
    "more reads in each call": lambda: Growing,
    "own autocast": lambda: OwnAutocast,
    "a weight of the stem": tied,
    "weight and bias of the stem": tied,
}
WAYS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "in backward": {"optimizer_on": "device", "update": "in_backward"},
}


def trained(block: str, settings: dict[str, Any] | None, autocast: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = Net(BLOCKS[block]()).to(DEVICE)
    if block.endswith("of the stem"):
        model.stem.weight = model.blocks[0].linear.weight
    if block.startswith("weight and bias"):
        model.stem.bias = model.blocks[0].linear.bias

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if autocast == "none":
            return model(x).square().mean()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast == "on"):
            return model(x).float().square().mean()

    plugins = {} if settings is None else {"layer-streaming": {"max_active_layers": 3, **settings}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": plugins}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            trainer.step(torch.randn(64, WIDTH, generator=generator).to(DEVICE))
    return {name: value.cpu() for name, value in tensors_of(model).items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("autocast", ["none", "on", "off"])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_bits_are_the_resident_models(block: str, autocast: str, way: str) -> None:
    assert same_tensors(trained(block, None, autocast), trained(block, WAYS[way], autocast))


class Given(nn.Module):
    """A block that is given its own weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + weight.sum()


class Giving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Given() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.blocks[0].linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.head.weight)
        return self.head(x)


def test_a_weight_that_is_an_argument_of_its_own_block_is_refused_in_one_line() -> None:
    model = Giving().to(DEVICE)
    config = {"plugins": {"layer-streaming": {}}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        HybridTrainer(
            model, optimizer, loss_fn=lambda model, x: model(x).mean(), config=config
        ) as trainer,
        pytest.raises(ModelError, match=r"as its own and as an argument.*mode = 'graph'"),
    ):
        trainer.step(torch.ones(2, WIDTH, device=DEVICE))
