"""Changes the learning rate during one update."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextmanager
def scaled_rate(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Multiply the `lr` of every group by `factor` in the context; restore each `lr` afterwards."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
