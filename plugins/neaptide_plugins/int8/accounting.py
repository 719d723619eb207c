"""What int8 weights take where, for the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neaptide import Ledger
    from neaptide.api.memory import Moment, Tier

OWNER = "int8"


@attrs.frozen
class Footprint:
    """One weight's bytes."""

    freed: int
    """Of the device, by its full form leaving."""
    codes: int
    tier: Tier
    """Where the codes lie."""


def held(ledger: Ledger, footprints: Iterable[Footprint], moments: frozenset[Moment]) -> Ledger:
    """Return a ledger with full weights in RAM, and codes, during `moments`."""
    return _replaced(ledger, footprints, moments, "host") if moments else ledger


def trained(ledger: Ledger, footprints: Iterable[Footprint]) -> Ledger:
    """Return a ledger of a phase in which there is nothing but codes, until the update."""
    entries = list(footprints)
    full = sum(entry.freed for entry in entries)
    ledger = _replaced(ledger, entries, None, None)
    return ledger.add(OWNER, "weights.decoded", "device", full, ("update",))


def _replaced(
    ledger: Ledger,
    footprints: Iterable[Footprint],
    moments: frozenset[Moment] | None,
    target: Tier | None,
) -> Ledger:
    during = {} if moments is None else {"moments": moments}
    for entry in footprints:
        if entry.freed:
            ledger = ledger.move("weights", "device", target, entry.freed, **during)
        ledger = ledger.add(OWNER, "weights.int8", entry.tier, entry.codes, **during)
    return ledger
