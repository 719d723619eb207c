"""Trains a net with or without activation checkpointing and notes everything that must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support import DEVICE, random_state

from neaptide_plugins.activation_checkpointing.segments import Segments
from neaptide_toolkit.recompute import find_blocks
from neaptide_toolkit.testing.parting import partings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def attached(
    model: nn.Module,
    pattern: str | None = None,
    device: torch.device = DEVICE,
    **settings: Any,
) -> Segments:
    """Move the model to `device` and patch its blocks; `interval` is 2 unless given."""
    segments = Segments(**{"interval": 2, **settings})
    segments.attach(find_blocks(model.to(device), pattern))
    return segments


def trace(
    make: Callable[[], nn.Module],
    loss_of: Callable[[nn.Module, int], torch.Tensor],
    *,
    segments: Callable[[nn.Module], Segments] | None = None,
    steps: int = 3,
) -> dict[str, torch.Tensor]:
    """Return losses, gradients, weights, buffers and random states of `steps` updates.

    `loss_of(model, step)` computes a loss; `segments(model)` patches the model, if given.
    """
    torch.manual_seed(0)
    model = make().to(DEVICE).train()
    patched = segments(model) if segments else None
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2
    )
    seen: dict[str, torch.Tensor] = {}
    for step in range(steps):
        loss = loss_of(model, step)
        seen[f"{step} random state after the forward"] = random_state()
        loss.backward()
        seen[f"{step} loss"] = loss.detach()
        seen[f"{step} random state after the backward"] = random_state()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                seen[f"{step} gradient of {name}"] = parameter.grad.clone()
        for name, value in model.state_dict().items():
            seen[f"{step} {name}"] = value.clone()
        optimizer.step()
        optimizer.zero_grad()
    if patched:
        assert patched.dropped_bytes > 0, "nothing was checkpointed, so nothing was tested"
        patched.detach()
    return seen


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of what is not bitwise the same in both, or in one of them only."""
    return [parting.name for parting in partings(one, other)]
