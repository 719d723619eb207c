"""Memory in bytes: estimates (each is a `Ledger`), and samples of the memory in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from neaptide.io.units import size
from neaptide.plugin import sole
from neaptide.renamed import missing_in
from neaptide.text import called, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

Tier = Literal["device", "host", "disk"]
"""`device`: memory of the computing device; `host`: RAM, unless it is the device; `disk`: files."""

Moment = Literal["forward", "backward", "update", "predict", "evaluate", "save"]

MOMENTS: tuple[Moment, ...] = ("forward", "backward", "update", "predict", "evaluate", "save")


@attrs.frozen
class Entry:
    """Bytes that one owner holds on one tier in some moments of a phase."""

    owner: str
    """`core`, or a plugin's name."""
    kind: str
    """`weights`, `gradients`, `optimizer.state`, `activations`, …"""
    tier: Tier
    bytes: int
    moments: frozenset[Moment] = frozenset(MOMENTS)
    """The parts of a step during which the owner holds the bytes."""
    __repr__ = one_line


@attrs.frozen
class Ledger:
    """The memory estimate of one phase. A ledger is immutable; each plugin returns a changed copy.

    Each plugin gets the ledger that the previous plugin in resolved order returned.
    """

    entries: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        peaks = (f"{tier} {size(self.peak(tier)[1])}" for tier in self._tiers())
        return f"Ledger({', '.join(peaks)})"

    def __str__(self) -> str:
        peaks = {tier: self.peak(tier) for tier in self._tiers()}
        return str(sole("neaptide.memory_tables")(self.entries, peaks, MOMENTS))

    def _tiers(self) -> list[Tier]:
        return [tier for tier in get_args(Tier) if self.total(tier=tier)]

    def add(
        self, owner: str, kind: str, tier: Tier, nbytes: int, moments: Iterable[Moment] = MOMENTS
    ) -> Ledger:
        """Return a copy of the ledger with one more entry: `nbytes` bytes that `owner` holds."""
        entry = Entry(owner, kind, tier, int(nbytes), frozenset(moments))
        return Ledger((*self.entries, entry))

    def move(
        self,
        kind: str,
        source: Tier,
        target: Tier | None,
        nbytes: int | None = None,
        moments: Iterable[Moment] = MOMENTS,
    ) -> Ledger:
        """Return a ledger with entries of `kind` moved from `source` to `target` during `moments`.

        Moves at most `nbytes` in total. A `target` of None removes the bytes from the ledger.
        """
        during, left, moved = frozenset(moments), nbytes, []
        for entry in self.entries:
            if (entry.kind, entry.tier) != (kind, source) or not entry.moments & during:
                moved.append(entry)
                continue
            part = entry.bytes if left is None else min(left, entry.bytes)
            left = None if left is None else left - part
            if target is not None:
                there = attrs.evolve(entry, tier=target, bytes=part)
                moved.append(attrs.evolve(there, moments=entry.moments & during))
            moved += [
                attrs.evolve(entry, bytes=part, moments=entry.moments - during),
                attrs.evolve(entry, bytes=entry.bytes - part),
            ]
        return Ledger(tuple(entry for entry in moved if entry.bytes and entry.moments))

    def scale(self, kind: str, factor: float) -> Ledger:
        """Return a ledger in which the bytes of each entry of `kind` are multiplied by `factor`."""
        scaled = (
            attrs.evolve(entry, bytes=round(entry.bytes * factor)) if entry.kind == kind else entry
            for entry in self.entries
        )
        return Ledger(tuple(scaled))

    def total(
        self,
        *,
        tier: Tier | None = None,
        moment: Moment | None = None,
        owner: str | None = None,
        kind: str | None = None,
    ) -> int:
        """Return the bytes of all entries that match the arguments; None matches every entry."""
        return sum(
            entry.bytes
            for entry in self.entries
            if (tier is None or entry.tier == tier)
            and (moment is None or moment in entry.moments)
            and (owner is None or entry.owner == owner)
            and (kind is None or entry.kind == kind)
        )

    def peak(self, tier: Tier) -> tuple[Moment, int]:
        """Return the moment at which `tier` holds the most bytes, and this number of bytes."""
        totals = {moment: self.total(tier=tier, moment=moment) for moment in MOMENTS}
        worst = max(MOMENTS, key=lambda moment: totals[moment])
        return worst, totals[worst]


@attrs.frozen
class MemorySample:
    """The memory of the process at one time, in bytes."""

    device_bytes: int | None
    """Bytes of live tensors in torch's device allocator; None without an accelerator."""
    host_bytes: int
    """Resident set size of the process."""


def named_by_bytes(store: Any) -> str:
    """Return the repr of a ParameterStore. It shows the bytes of the weights and the optimizer."""
    spans = store.spans()
    weights = size(sum(span.bytes for span in spans))
    return called(store, f"{len(spans)} spans", weights, type(store.optimizer).__name__)


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__ = missing_in(__name__)
