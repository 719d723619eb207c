"""The bytes of optimizer state that leave the device, and what that changes in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import CORRECT, FULL, WARMUP

if TYPE_CHECKING:
    from neaptide import Ledger, Phase

_KIND = "optimizer.state"


@attrs.frozen(kw_only=True)
class Room:
    """Bytes that leave the device, and bytes taken for them elsewhere."""

    leaves: int
    """Free on the device where nothing is updated."""
    codes: int = 0
    """Taken on the device instead."""
    host: int = 0
    """Taken on the host meanwhile."""
    kept: int = 0
    """Taken on the host already, for the next time."""


def account(ledger: Ledger, owner: str, room: Room, phase: Phase, *, corrects: bool) -> Ledger:
    """Return the ledger of `phase`; `corrects` says whether Correct follows an accepted jump."""
    if not phase.updates_optimizer:
        ledger = ledger.move(_KIND, "device", None, room.leaves)
        ledger = ledger.add(owner, f"{_KIND}.codes", "device", room.codes)
        return ledger.add(owner, _KIND, "host", room.host)
    if room.kept and phase is not WARMUP:  # nothing has left before
        return ledger.add(owner, _KIND, "host", room.kept)
    if phase is (CORRECT if corrects else FULL):
        # In the first step there: the state is on its way back until the update.
        return ledger.add(owner, _KIND, "host", room.host, ("forward", "backward"))
    return ledger
