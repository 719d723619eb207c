"""Trainers whose weights and state are on a disk, in the ways that streaming has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support import DEVICE
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "stored": {},
    "in backward": {"update": "in_backward"},
    "in backward, lagged": {"update": "in_backward", "clip": "lagged"},
    "split": {"update": "in_backward", "master": "split"},
    "inputs, one slot": {"inputs": "host", "optimizer_slots": 1, "update": "in_backward"},
    "inputs on the disk": {"inputs": "disk", "update": "in_backward"},
    "inputs on the disk, in pieces": {"inputs": "disk", "micro_batches": 2},
    "graph": {"mode": "graph"},
    "some phases": {"phases": ["warmup"]},
}
WIDTH = 48
HOMES = 4 * (4 * WIDTH * WIDTH + 4 * WIDTH)
"""Bytes of the weights of four blocks; AdamW's state is twice as large."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.layer(x)).tanh()


def trainer_of(
    settings: dict[str, Any] | None, dtype: torch.dtype = torch.float32
) -> HybridTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Block() for _ in range(4)]).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plugins = {} if settings is None else {"layer-streaming": settings}
    clipped = settings is not None and settings.get("clip") is not None
    train = {"clip_norm": 0.05} if clipped else {}

    def loss(net: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(net(x).float(), torch.ones(len(x), WIDTH, device=DEVICE))

    config = {"train": train, "plugins": plugins}
    return HybridTrainer(model, optimizer, loss_fn=loss, config=config)


def batches(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(8, 32, WIDTH, generator=generator).to(DEVICE, dtype))


def train(trainer: HybridTrainer) -> None:
    for batch in batches():
        trainer.step(batch)


def on_disk(way: str, folder: Path, **others: Any) -> dict[str, Any]:
    return {"tier": "disk", "path": str(folder), "ram_gib": 0.0} | WAYS[way] | others


def dtype_of(way: str) -> torch.dtype:
    return torch.bfloat16 if "split" in way else torch.float32
