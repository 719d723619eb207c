"""Changes the memory ledger (a memory estimate) by the bytes that an eviction moves or frees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import CORRECT, FULL, WARMUP

if TYPE_CHECKING:
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
