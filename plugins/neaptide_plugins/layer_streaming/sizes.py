"""Bytes, written for people."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Write bytes for people: `1.50 GiB`."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1023.995 and len(units) > 1:  # noqa: PLR2004 - would print 1024.00
        value = value / 1024
        units = units[1:]
    return f"{value:.2f} {units[0]}" if units[0] != "B" else f"{nbytes} B"
