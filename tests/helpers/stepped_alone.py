"""Weights, and optimizers of torch that step them without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

SHAPES = [(4, 3), (5,), (), (0, 2)]


def weights(shapes: Sequence[tuple[int, ...]] = SHAPES, **kind: Any) -> list[nn.Parameter]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(**kind)) for shape in shapes]


def gradient(step: int, param: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(torch.get_default_device()).manual_seed(100 + step)
    return torch.randn(param.shape, generator=generator).to(param.dtype)


def train(optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = gradient(step, param) if param.requires_grad else None
        optimizer.step()


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))
