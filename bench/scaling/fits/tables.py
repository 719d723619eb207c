"""The tables of `simulated/fits.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scaling.fits.fitting import RAM, Machine
from scaling.on_cards import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

TIERS = {"device": "card", "ram": "RAM"}


def models(rows: Sequence[dict[str, Any]]) -> str:
    """Return the largest models as Markdown."""
    head = (
        "card", "RAM", "parameters", "blocks x width", "binds", "card GiB, of", "RAM GiB, of",
        "least of the card", "way", "tokens/s at most",
    )  # fmt: skip
    lines = []
    for row in rows:
        tokens = row["tokens_per_s"]
        speed = "" if tokens is None else f"{tokens:,.0f}, {row['bound_by']}"
        lines.append(
            (
                *_machine(row),
                f"**{row['parameters'] / 1e9:,.1f}B**" + (" or more" if row["is_last"] else ""),
                f"{row['blocks']} x {row['width']}",
                TIERS[row["binds"]],
                *_peaks(row),
                f"{row['least'] / GIB:.1f}",
                row["way"],
                speed,
            )
        )
    return _table(head, lines)


def contexts(rows: Sequence[dict[str, Any]]) -> str:
    """Return the longest contexts as Markdown: a row for each machine, a column for each model."""
    found = {(row["card"], row["ram_gib"], row["model"]): row for row in rows}
    names = [*dict.fromkeys(row["model"] for row in rows)]
    head = ["card", "RAM"]
    for model in names:
        head += [f"{model}: tokens", "binds", "card GiB, of", "RAM GiB, of"]
    lines = []
    for card in dict.fromkeys(row["card"] for row in rows):
        for ram in RAM:
            cells: list[str] = []
            for model in names:
                row = found.get((card, ram, model))
                if row is None:
                    cells += ["no", "", "", ""]
                    continue
                where = " (inputs on the card)" if "inputs on the card" in row["way"] else ""
                cells += [f"**{row['context']:,}**{where}", TIERS[row["binds"]], *_peaks(row)]
            lines.append((card, _ram(ram), *cells))
    return _table(head, lines)


def _machine(row: dict[str, Any]) -> tuple[str, str]:
    return row["card"], _ram(row["ram_gib"])


def _ram(gib: int | None) -> str:
    return "any" if gib is None else str(gib)


def _peaks(row: dict[str, Any]) -> list[str]:
    caps = Machine(row["card"], row["ram_gib"]).caps
    return [
        f"{row[tier] / GIB:.1f}" + (f", {cap / GIB:.1f}" if math.isfinite(cap) else "")
        for tier, cap in caps.items()
    ]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, *lines]
    text = ["| " + " | ".join(line) + " |" for line in rows]
    return "\n".join([text[0], "|---" * len(head) + "|", *text[1:]])
