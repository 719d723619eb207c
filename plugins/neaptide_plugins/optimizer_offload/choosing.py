"""Which mechanism makes state leave the device, by the strategy's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .compressed_state import CompressedState
from .dropped_state import DroppedState
from .host_state import HostState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from neaptide import ParameterStore, Span

    from .accounting import Room


class Mechanism(Protocol):
    """Makes state leave and come back. What fails or is interrupted can be called again."""

    left: Mapping[str, int]
    """Bytes that stayed the last time, by the reason."""
    error: float | None
    """Relative error of what left last; None where it comes back as it was."""

    @property
    def note(self) -> str | None:
        """Why it does less than was asked for, in a line."""

    @property
    def is_away(self) -> bool:
        """Whether there is anything to bring back."""

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Free the device of the state of `spans`."""

    def begin(self) -> None:
        """Start to bring it back, if that can be done beside the computation."""

    def finish(self) -> None:
        """Have it back; what is computed from here on waits for it."""

    def close(self) -> None:
        """Let go of threads and memory."""

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return the bytes that leave and those that are taken instead."""


def mechanism(
    strategy: str, store: ParameterStore, spans: Collection[Span], device: torch.device
) -> Mechanism | None:
    """Return a strategy's mechanism; ValueError where it cannot work on the state of `spans`."""
    if strategy in ("cpu", "pinned"):
        return HostState(device, pin=strategy == "pinned")
    if strategy == "compress":
        return CompressedState()
    if strategy == "drop":
        return DroppedState(store, spans)
    return None
