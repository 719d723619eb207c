"""Independent checks: each prints one line of JSON, even if it fails."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

GIB = 2**30
MIB = 2**20
LONGEST_ERROR = 160

Finding = dict[str, Any]
"""A check's result: `summary`, one line of text, and its numbers."""

Check = tuple[str, Callable[[], Finding]]
"""A name, and the function that makes the finding; it may raise any exception."""


def first_line(error: BaseException) -> str:
    """Return an error's type and the start of its text, in one line."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {textwrap.shorten(text, LONGEST_ERROR, placeholder=' …')}"


def run_checks(checks: Iterable[Check]) -> None:
    """Run the checks in order and print each one's finding, or its error, as a line of JSON."""
    for name, find in checks:
        try:
            result: Finding = {**find(), "name": name, "ok": True}
        except Exception as error:  # noqa: BLE001 - that it fails, and how, is the finding
            result = {"name": name, "ok": False, "summary": f"failed: {first_line(error)}"}
        print(json.dumps(result), flush=True)


def outcome(action: Callable[[], object]) -> str:
    """Return "works", or the error that `action` raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - which error comes is the question
        return first_line(error)
    return "works"


def spread(values: Sequence[float], unit: str) -> Finding:
    """Return the median and the range of repeated measurements."""
    middle = statistics.median(values)
    summary = f"{middle:.1f} {unit} ({min(values):.1f} to {max(values):.1f}, n={len(values)})"
    return {"summary": summary, "median": middle, "values": list(values), "unit": unit}
