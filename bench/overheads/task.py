"""The training task that all subjects of `overhead.py` share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from neaptide.run.feed import moved

if TYPE_CHECKING:
    from collections.abc import Callable

    Batch = tuple[torch.Tensor, torch.Tensor]

FEATURES, CLASSES, SAMPLES = 32, 10, 16


def net() -> nn.Module:
    """Return three linear layers with 6,922 parameters. Every call returns equal weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES)
    )


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW for all parameters of the model."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches(device: str = "cpu") -> list[Batch]:
    """Return eight batches of 16 samples: `(16, 32)` floats and `(16,)` classes."""
    random = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(SAMPLES, FEATURES, generator=random).to(device),
            torch.randint(CLASSES, (SAMPLES,), generator=random).to(device),
        )
        for _ in range(8)
    ]


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy in nats."""
    features, classes = batch
    return functional.cross_entropy(model(features), classes)


def looped(
    step: Callable[[Any], object], device: str = "cpu", data: list[Any] | None = None
) -> Callable[[int], float]:
    """Return a function that calls `step` a given number of times and returns the seconds.

    The seconds include all work that the steps start on the device. Without `data`, the batches
    are those of `batches`.
    """
    data = batches(device) if data is None else moved(data, torch.device(device))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def run(steps: int) -> float:
        started = time.perf_counter()
        for index in range(steps):
            step(data[index % len(data)])
        wait()
        return time.perf_counter() - started

    return run


def step_of_plain_torch(device: str = "cpu") -> Callable[[Batch], None]:
    """Return one step of a plain PyTorch loop."""
    model = net().to(device)
    optimizer = optimizer_of(model)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()

    return step
