"""What optimizer offload changes in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import CORRECT, FULL, WARMUP

if TYPE_CHECKING:
    from neaptide import Ledger, Phase

    from .state_tensors import Room

_KIND = "optimizer.state"


def account(ledger: Ledger, owner: str, room: Room, phase: Phase, *, corrects: bool) -> Ledger:
    """Return the ledger of `phase`; `corrects` says whether Correct follows an accepted jump."""
    if not phase.updates_optimizer:
        ledger = _without(ledger, room.leaves)
        ledger = ledger.add(owner, f"{_KIND}.codes", "device", room.codes)
        return ledger.add(owner, _KIND, "host", room.host)
    if room.kept and phase is not WARMUP:  # nothing has left before
        return ledger.add(owner, _KIND, "host", room.kept)
    if phase is (CORRECT if corrects else FULL):
        # Of the first step there: it is on its way back until the update.
        return ledger.add(owner, _KIND, "host", room.host, ("forward", "backward"))
    return ledger


def _without(ledger: Ledger, leaving: int) -> Ledger:
    """Return the ledger with so many bytes less of state on the device."""
    entries = []
    for entry in ledger.entries:
        taken = min(leaving, entry.bytes) if (entry.kind, entry.tier) == (_KIND, "device") else 0
        leaving -= taken
        entries.append(attrs.evolve(entry, bytes=entry.bytes - taken))
    return attrs.evolve(ledger, entries=tuple(entries))
