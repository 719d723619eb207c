"""What verbs print: JSON for programs, aligned tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Preset = Annotated[str | None, Parameter(help="Start from a preset; see `neaptide presets list`.")]
Sets = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Change one setting: `--set train.steps=100`."),
]


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_text(text: str) -> None:
    """Print text as it is, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns as wide as they need; the last one is left ragged."""
    print_text(table(rows))


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows in aligned columns."""
    lines = [[str(cell) for cell in row] for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def size(nbytes: float) -> str:
    """Write bytes for people: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":  # noqa: PLR2004 - a KiB
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
