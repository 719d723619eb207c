"""Small models of several kinds, and data for them: factories that a configuration can name.

For example `[model] name = "neaptide_toolkit.testing.kinds:recurrent"`. The model and the data must
have the same `width`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neaptide import Data, Loss, Task

ROWS = 8


def _mean_of_squares(model: nn.Module, batch: Any) -> torch.Tensor:
    made = model(batch)
    result: torch.Tensor = (made[0] if isinstance(made, tuple) else made).square().mean()
    return result


def encoder(layers: int = 4, width: int = 128) -> Task:
    """Return a transformer's encoder with dropout; its layers are in a ModuleList."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return Task(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), _mean_of_squares)


def recurrent(layers: int = 2, width: int = 128) -> Task:
    """Return an LSTM."""
    return Task(nn.LSTM(width, width, layers, batch_first=True), _mean_of_squares)


def convolutions(layers: int = 4, width: int = 16) -> Task:
    """Return a convolutional network with batch normalization and pooling."""
    blocks = [
        nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        for _ in range(layers)
    ]
    return Task(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), _mean_of_squares)


class Experts(nn.Module):
    """A mixture of experts that picks rows by their values."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the rows, each through the expert that it prefers."""
        rows = values.flatten(0, -2)
        chosen = self.gate(rows).argmax(-1)
        made = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (picked,) = torch.where(chosen == number)
            made.index_add_(0, picked, expert(rows[picked]))
        return made.view_as(values)


def experts(layers: int = 2, width: int = 64) -> Task:
    """Return layers of four experts each."""
    return Task(nn.Sequential(*(Experts(4, width) for _ in range(layers))), _mean_of_squares)


def deep(layers: int = 6, width: int = 256) -> Task:
    """Return a deep net of linear layers with residual connections."""

    class ResidualBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = values + self.down(functional.gelu(self.up(self.norm(values))))
            return result

    def loss(model: nn.Module, batch: Any) -> Loss:
        made = model(batch)
        return Loss(made.square().sum(), made.numel())

    return Task(nn.Sequential(*(ResidualBlock() for _ in range(layers))), loss)


def rows(*shape: int) -> Data:
    """Return batches of random numbers: four to train on, one to evaluate."""
    torch.manual_seed(0)
    return Data([torch.randn(ROWS, *shape) for _ in range(4)], [torch.randn(ROWS, *shape)])


def sequences(length: int = 64, width: int = 128) -> Data:
    """Return batches of sequences of vectors."""
    return rows(length, width)


def images(width: int = 16, side: int = 24) -> Data:
    """Return batches of images."""
    return rows(width, side, side)
