"""The rows of `scale.py` as a table. Some columns are ratios between rows."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = (
    "| case | model | cap | tokens | optimizer | subject | clip | micro-batches | device GB "
    "| host GB | tokens/s | x resident | x FSDP2 | roofline | bound by |"
)
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, each with its speed relative to resident training and to FSDP2's offload.

    A ratio is None if there is no row to compare with.
    """
    return [
        {
            **row,
            "x_resident": _ratio(row, rows, "resident", same_cap=False),
            "x_fsdp2": _ratio(row, rows, "fsdp2", same_cap=True),
        }
        for row in rows
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table. If a row was not measured, its computed bytes are in brackets."""
    return "\n".join([HEAD, re.sub(r"[^|]+", "---", HEAD), *map(_line, rows)])


def put_into(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between the page's two comments."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        msg = f"{page} has no {begin} … {end} for the table"
        raise ValueError(msg)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def _ratio(
    row: dict[str, Any], rows: Sequence[dict[str, Any]], subject: str, *, same_cap: bool
) -> float | None:
    keys = ["model", "tokens", "optimizer", "outcome", *(["cap_gb"] if same_cap else [])]
    bases = [
        other["tokens_per_s"]
        for other in rows
        if other["subject"] == subject
        and "tokens_per_s" in other
        and all(other[key] == row[key] for key in keys)
    ]
    return row["tokens_per_s"] / statistics.median(bases) if bases else None


def _line(row: dict[str, Any]) -> str:
    cap = "all" if row["cap_gb"] is None else f"{row['cap_gb']} GB"
    start = (
        f"| {row['case']} | {row['model']} | {cap} | {row['tokens']} | {row['optimizer']} "
        f"| {row['subject']} | {row['clip']} | {row['micro_batches']} "
    )
    if "tokens_per_s" not in row:
        sizes = (row["computed_device_bytes"], row["computed_host_bytes"])
        computed = " | ".join(f"({sum(size.values()) / 1e9:.1f})" for size in sizes)
        why = "" if row["reason"] is None else f": {row['reason'].replace('|', '/')}"
        return f"{start}| {computed} | {row['outcome']}{why} | | | | |"
    device = "" if row["peak_device_bytes"] is None else f"{row['peak_device_bytes'] / 1e9:.1f}"
    ratios = " | ".join(
        "" if row[key] is None else f"{row[key]:.2f}" for key in ("x_resident", "x_fsdp2")
    )
    share = row["share_of_roofline"]
    bound = "" if share is None else f"{share:.0%}"
    note = " (smoke test)" if row["outcome"] == "smoke test" else ""
    return (
        f"{start}| {device} | {row['peak_host_bytes'] / 1e9:.1f} "
        f"| {row['tokens_per_s']:.0f}{note} | {ratios} | {bound} | {row['binding_lane'] or ''} |"
    )
