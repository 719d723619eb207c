"""Which state may leave, and what makes it leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .away import Away
from .compressed import Compressed
from .dropped import Dropped

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from .state_tensors import Room, State


class Mechanism(Protocol):
    """What makes state leave and come back. What fails or is interrupted can be called again."""

    left: Mapping[str, int]
    """Bytes that stayed the last time, by why."""
    error: float | None
    """Relative error of what left last; None where it comes back as it was."""

    @property
    def note(self) -> str | None:
        """Why it does less than was asked for, in a line."""

    @property
    def is_away(self) -> bool:
        """Whether there is anything to bring back."""

    def leave(self, state: State) -> None:
        """Free the device of `state`."""

    def begin(self) -> None:
        """Start to bring it back, if that can be done beside the computation."""

    def finish(self) -> None:
        """Have it back; what is computed from here on waits for it."""

    def close(self) -> None:
        """Let go of threads and memory."""

    def room(self, state: State) -> Room:
        """Return the bytes that leave and those that are taken instead."""


def mechanism(strategy: str, state: State) -> Mechanism | None:
    """Return what a strategy's name stands for; ValueError where it cannot work on `state`."""
    if strategy in ("cpu", "pinned"):
        return Away(state.device, pin=strategy == "pinned")
    if strategy == "compress":
        return Compressed()
    if strategy == "drop":
        return Dropped(state.optimizer, state.parameters)
    return None


def tensors_of(model: nn.Module) -> list[torch.Tensor]:
    """Return a model's weights, their gradients and its buffers."""
    weights = list(model.parameters())
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return [*weights, *gradients, *model.buffers()]
