"""Formats a memory ledger (the memory estimate of a phase) as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from neaptide.io.units import size
from neaptide.text import table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


def memory_table(
    entries: Iterable[Any], peaks: Mapping[Any, tuple[str, int]], moments: Sequence[str]
) -> str:
    """Return a ledger as text: the peak of each tier (device, host), then its entries by size."""
    lines = [f"{tier:<6}  peak {size(nbytes)} in {when}" for tier, (when, nbytes) in peaks.items()]
    held: Counter[tuple[str, ...]] = Counter()
    for one in entries:
        held[one.tier, one.kind, one.owner, _held_in(one.moments, moments)] += one.bytes
    if not any(kind == "activations" for _, kind, *_ in held):
        lines.append("activations depend on the batch and are not in it")
    most = sorted(held.items(), key=lambda one: (one[0][0], -one[1]))
    width = max(map(len, ["bytes", *(size(nbytes) for _, nbytes in most)]))
    rows = [("tier", "kind", "owner", "bytes".rjust(width), "held in")]
    for (tier, kind, owner, when), nbytes in most:
        rows.append((tier, kind, owner, size(nbytes).rjust(width), when))
    return "\n".join([*lines, "", table(rows)])


def _held_in(moments: Collection[str], every: Sequence[str]) -> str:
    """Return `moments` as text, or `all but` the missing moments if these are fewer."""
    held = [moment for moment in every if moment in moments]
    missing = [moment for moment in every if moment not in moments]
    if len(missing) < len(held):
        return f"all but {', '.join(missing)}" if missing else "all"
    return ", ".join(held)
