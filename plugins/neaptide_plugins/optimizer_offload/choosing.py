"""Chooses the mechanism that evicts the state, as the configured strategy says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from neaptide_toolkit.machine.devices import lacks

from .compressed_state import CompressedState
from .dropped_state import DroppedState
from .host_state import HostState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from neaptide import ParameterStore, Span

    from .accounting import Room


class Mechanism(Protocol):
    """Evicts the optimizer's state and brings it back. A call that fails can be repeated."""

    left: Mapping[str, int]
    """Bytes that the last eviction could not evict, by reason."""
    error: float | None
    """Relative error of the last eviction; None if the state is brought back bit for bit."""

    @property
    def note(self) -> str | None:
        """One line that states why the mechanism does less than configured, or None."""

    @property
    def is_away(self) -> bool:
        """True if any state is evicted."""

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Evict the state of `spans`."""

    def begin(self) -> None:
        """Start to copy the state back in parallel with the computation, where possible."""

    def finish(self) -> None:
        """Bring the state back. Computation that is queued later waits for the copies."""

    def close(self) -> None:
        """End threads and free memory."""

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return the bytes that an eviction would free and the bytes that it would allocate."""


def mechanism(
    strategy: str, store: ParameterStore, spans: Collection[Span], device: torch.device
) -> Mechanism | None:
    """Return the mechanism of `strategy`; None for the strategy `none`.

    Raises ValueError if the mechanism cannot evict the state of `spans` from `device`.
    """
    if strategy in ("cpu", "pinned"):
        reason = None if device.type == "cpu" else lacks(device, "streams")
        if reason is not None:
            msg = f"strategy = {strategy!r} cannot run here: {reason}; use 'compress' or 'drop'"
            raise ValueError(msg)
        return HostState(device, pin=strategy == "pinned")
    if strategy == "compress":
        return CompressedState()
    if strategy == "drop":
        return DroppedState(store, spans)
    return None
