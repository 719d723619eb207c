"""Changes the memory ledger (a memory estimate) by the bytes that an eviction moves or frees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import CORRECT, FULL, WARMUP
from neaptide_toolkit.offload.storages import SMALLEST

from .codes import coded_bytes, encodable

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from neaptide import Ledger, Phase

_KIND = "optimizer.state"


@attrs.frozen(kw_only=True)
class Room:
    """Bytes that an eviction frees on the device, and bytes that it allocates elsewhere."""

    leaves: int
    """Bytes freed on the device in phases without updates."""
    codes: int = 0
    """Bytes of the codes that replace the freed state on the device."""
    host: int = 0
    """Bytes on the host while the state is evicted."""
    kept: int = 0
    """Bytes of the host buffer that stays allocated after the state is copied back."""


def expected_room(strategy: str, tensors: Iterable[torch.Tensor]) -> Room:
    """Return the room of an eviction of state that does not exist yet: `tensors`, in its shapes."""
    if strategy == "drop":
        return Room(leaves=sum(tensor.nbytes for tensor in tensors))
    large = [tensor for tensor in tensors if tensor.nbytes >= SMALLEST]
    if strategy == "compress":
        coded = [tensor for tensor in large if encodable(tensor)]
        return Room(
            leaves=sum(tensor.nbytes for tensor in coded),
            codes=sum(coded_bytes(tensor) for tensor in coded),
        )
    leaves = sum(tensor.nbytes for tensor in large)
    return Room(leaves=leaves, host=leaves)


def account(ledger: Ledger, owner: str, room: Room, phase: Phase, *, corrects: bool) -> Ledger:
    """Return the memory ledger of `phase`.

    `corrects` states whether a Correct phase follows a jump.
    """
    if not phase.updates_optimizer:
        ledger = ledger.move(_KIND, "device", None, room.leaves)
        ledger = ledger.add(owner, f"{_KIND}.codes", "device", room.codes)
        return ledger.add(owner, _KIND, "host", room.host)
    if room.kept and phase is not WARMUP:  # Warmup precedes the first Predict.
        return ledger.add(owner, _KIND, "host", room.kept)
    if phase is (CORRECT if corrects else FULL):
        # In the first step after Predict the host buffer is in use until the update.
        return ledger.add(owner, _KIND, "host", room.host, ("forward", "backward"))
    return ledger
