"""Nets made by chance: how blocks are put together, called, trained and told from another."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from law_ways import pairs
from sweep_net_blocks import BODIES, TIME, WIDTH, Block, Result
from sweeps import EVERY_WAY, UPDATES, Case
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 480
PAIRS = 3
CLASSES = 5


class RandomNet(nn.Module):
    """A stem, blocks in a container, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.embedding = nn.Embedding(11, WIDTH)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        made = self._blocks(chance)
        self.blocks = _contained(chance, made)
        self.walk = chance.choice(WALKS)
        self._tie(chance, made)
        self._freeze(chance, made)

    def _blocks(self, chance: random.Random) -> list[Any]:
        count = chance.randint(2, 5)
        if chance.random() < 0.3:
            kind = chance.choice(list(BODIES))
            return [Block(chance, kind) for _ in range(count)]
        return [Block(chance, chance.choice(list(BODIES))) for _ in range(count)]

    def _tie(self, chance: random.Random, made: list[Any]) -> None:
        if chance.random() < 0.2:
            self.second.weight = self.stem.weight
        if chance.random() < 0.15:
            made[-1].scale = made[0].scale
        if chance.random() < 0.15:
            made[-1].mix.weight = made[0].mix.weight
        if chance.random() < 0.1:
            made[0].mix.weight = self.stem.weight
        if chance.random() < 0.1:
            made[-1].body = made[0].body

    def _freeze(self, chance: random.Random, made: list[Any]) -> None:
        if chance.random() < 0.2:
            chance.choice(made).requires_grad_(False)
        if chance.random() < 0.15:
            self.stem.requires_grad_(False)
            self.embedding.requires_grad_(False)
        if chance.random() < 0.2:
            chance.choice(made).eval()
        if chance.random() < 0.2:
            chance.choice(made).unused = nn.Parameter(torch.ones(3))
        for one in self.parameters():
            if chance.random() < 0.03:
                one.requires_grad_(False)

    def forward(self, given: dict[str, Any]) -> dict[str, torch.Tensor]:
        x = self.stem(given["x"]) + self.embedding(given["tokens"])
        memory = self.second(given["x"]).tanh()
        found = self.walk(self, x, memory)
        return {"logits": self.head(found).float().mean(1), "memory": memory}

    @property
    def each(self) -> list[Any]:
        """The blocks in the order in which they run."""
        values = self.blocks.values() if isinstance(self.blocks, nn.ModuleDict) else self.blocks
        return [
            part for one in values for part in (one if isinstance(one, nn.ModuleList) else [one])
        ]


def _contained(chance: random.Random, made: list[Any]) -> nn.Module:
    kind = chance.choice(["list", "list", "dict", "sequential", "lists"])
    if kind == "dict":
        return nn.ModuleDict({f"block{place}": one for place, one in enumerate(made)})
    if kind == "sequential":
        return nn.Sequential(*made)
    if kind == "lists":
        middle = len(made) // 2
        return nn.ModuleList([nn.ModuleList(made[:middle]), nn.ModuleList(made[middle:])])
    return nn.ModuleList(made)


# -- how a net walks through its blocks ------------------------------------------------------------


def _tensor(found: Result) -> torch.Tensor:
    """Return the tensor that goes on, of whatever form a block returns."""
    if isinstance(found, dict):
        return found["x"] + 0.1 * found["more"]
    if isinstance(found, tuple):
        return found[0] * (1 + 0.1 * found[1].mean())
    return found


def _straight(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(x, memory))
    return x


def _without_memory(net: RandomNet, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(x))
    return x


def _by_name(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(memory=memory, x=x))
    return x


def _twice(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in (*net.each, *net.each[:2]):
        x = _tensor(block(_tensor(block(x, memory)), memory))
    return x


def _skips(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    outputs = [x]
    for block in net.each:
        outputs.append(_tensor(block(outputs[-1], outputs[0])))
    return torch.stack(outputs).sum(0) + outputs[0] * outputs[1] + memory


def _parallel(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    before = x.sin()
    found = [_tensor(block(x, memory)) for block in net.each]
    return sum(found) / len(found) + before + x


def _dense(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    total = x
    for block in net.each:
        total = total + _tensor(block(total * 0.5, total))
    return total + memory


def _in_place_between(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(x, memory)).clone().mul_(0.9)
    return x


def _in_place_on_the_output(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(x, memory))
        x.mul_(0.9)
    return x


def _by_chance(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        if torch.rand(()) < 0.7:
            x = _tensor(block(x, memory))
    return x


def _the_same_twice(net: RandomNet, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        x = _tensor(block(x, x))
    return x


def _partly_without_gradients(
    net: RandomNet, x: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        hint = _tensor(net.each[0](x, memory))
    for block in net.each:
        x = _tensor(block(x + hint, memory))
    return x.detach() * 0.5 + x


def _views(net: RandomNet, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    for block in net.each:
        first, second = x.split([2, TIME - 2], dim=1)
        x = _tensor(block(torch.cat([second, first], 1), memory.transpose(0, 0)))
    return x


WALKS: list[Callable[..., torch.Tensor]] = [
    _straight, _straight, _straight, _without_memory, _by_name, _twice, _skips, _parallel, _dense,
    _in_place_between, _in_place_on_the_output, _by_chance, _the_same_twice,
    _partly_without_gradients, _views,
]  # fmt: skip


# -- how a net is trained --------------------------------------------------------------------------

OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.Adam, lr=0.01, foreach=True),
    partial(torch.optim.Adam, lr=0.01, fused=True, amsgrad=True),
    partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    partial(torch.optim.SGD, lr=0.05),
    partial(torch.optim.RMSprop, lr=0.001, centered=True),
    partial(torch.optim.NAdam, lr=0.01),
]


def _made(seed: int, dtype: torch.dtype) -> nn.Module:
    return RandomNet(seed).to(dtype)


def _batches(seed: int, dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(4, TIME, WIDTH, generator=generator).to(dtype),
            "tokens": torch.randint(0, 11, (4, TIME), generator=generator),
            "y": torch.randint(0, CLASSES, (4,), generator=generator),
        }
        for _ in range(UPDATES)
    ]


def _loss(model: nn.Module, batch: Any, *, autocast: bool, penalty: bool) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = model(batch)
    loss = functional.cross_entropy(found["logits"], batch["y"])
    return loss + 0.01 * found["memory"].float().square().mean() if penalty else loss


def _optimizer(make: Callable[..., torch.optim.Optimizer], model: nn.Module) -> Any:
    return make([one for one in model.parameters() if one.requires_grad])


def net_cases() -> Iterator[Case]:
    """Yield the random nets, with every way and some pairs of ways."""
    for seed in range(COUNT):
        chance = random.Random(seed + 100_000)
        dtype = torch.bfloat16 if chance.random() < 0.15 else torch.float32
        autocast = dtype is torch.float32 and chance.random() < 0.2
        drawn = {f"pair: {name}": pairs()[name] for name in chance.sample(sorted(pairs()), PAIRS)}
        yield Case(
            f"net {seed} {str(dtype)[6:]}{' autocast' if autocast else ''}",
            partial(_made, seed, dtype),
            partial(_batches, seed, dtype),
            partial(_loss, autocast=autocast, penalty=chance.random() < 0.3),
            partial(_optimizer, chance.choice(OPTIMIZERS)),
            {**EVERY_WAY, **drawn},
        )
