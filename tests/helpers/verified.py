"""A small model and its data for `verify`, and what is wrong without a plugin."""

from __future__ import annotations

from typing import Any

import torch
from support import DEVICE
from torch import nn
from torch.nn import functional

from neaptide import Data, Loss

WIDTH = 8


class Block(nn.Module):
    """A residual block with dropout, and a buffer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        found: torch.Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))
        return found


class Net(nn.Module):
    """Three blocks between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 11)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> Loss:
    """Return the summed cross-entropy of the tokens whose target is not -100."""
    logits, targets = model(batch["ids"]).flatten(0, 1), batch["targets"].flatten()
    total = functional.cross_entropy(logits, targets, reduction="sum")
    return Loss(total, int((targets != -100).sum()))


def net() -> Any:
    """Build the model."""
    return Net(), loss_of


def batches() -> Data:
    """Return four batches of four sequences, of unlike numbers of targets."""
    generator = torch.Generator().manual_seed(3)
    every = []
    for _ in range(4):
        ids = torch.randint(0, 11, (4, 5), generator=generator, device="cpu")
        targets = torch.randint(0, 11, (4, 5), generator=generator, device="cpu")
        targets[0, 1:] = -100
        every.append({"ids": ids, "targets": targets})
    return Data(every, every[:1])


class LostCount(Net):
    """Counts its calls in an attribute that no checkpoint knows."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.count += self.training
        found: torch.Tensor = super().forward(ids) * (1 + 0.01 * self.count)
        return found


def net_that_loses() -> Any:
    """Build a model with a lost buffer."""
    return LostCount(), loss_of


class Forgetful(torch.optim.AdamW):
    """Does not restore its state."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({**state_dict, "state": {}})


class HalfForgetful(torch.optim.AdamW):
    """Halves one of its moments when it restores its state."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["exp_avg"].mul_(0.5)


CONFIG: dict[str, Any] = {
    "model": {"name": "verified:net"},
    "data": {"name": "verified:batches"},
    "train": {"device": str(DEVICE), "clip_norm": 0.5},
}

BUILT: list[list[Block]] = []
"""The blocks of each model of six that was built."""


class Six(Net):
    """Six blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        BUILT.append([*self.blocks])  # type: ignore[arg-type]


class AllNeeded(Six):
    """A forward that asks for the last of its six blocks."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(ids) + self.blocks[5].calls
        return found


def six_blocks() -> Any:
    """Build a model of six blocks."""
    return Six(), loss_of


def all_needed() -> Any:
    """Build a model that cannot be sliced."""
    return AllNeeded(), loss_of


def no_blocks() -> Any:
    """Build a model without blocks."""
    return nn.Linear(2, 2), loss_of


class FunctionalDropout(Net):
    """Drops by functions, and not by modules."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.embedding(ids), 0.3, training=self.training)
        for block in self.blocks:
            x = torch.dropout(block(x), 0.2, self.training)
        x = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.4 * self.training)
        found: torch.Tensor = self.head(x)
        return found


class OwnNoise(Net):
    """Adds noise of its own, which micro-batches draw otherwise."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(ids)
        for _ in range(2 * self.training):
            found = found * (1 + torch.rand_like(found))
        return found


def functional_dropout() -> Any:
    """Build a model with dropout by functions."""
    return FunctionalDropout(), loss_of


def own_noise() -> Any:
    """Build a model that draws random numbers of its own."""
    return OwnNoise(), loss_of
