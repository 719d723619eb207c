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
"""A check's result: the measured numbers, and `summary`, one line of text."""

Check = tuple[str, Callable[[], Finding]]
"""A check has a name and a function that returns the finding. The function may raise any
exception."""


def first_line(error: BaseException) -> str:
    """Return one line: an error's type and the start of its text."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {textwrap.shorten(text, LONGEST_ERROR, placeholder=' …')}"


def run_checks(checks: Iterable[Check]) -> None:
    """Run the checks in order.

    For each check print a line of JSON with the finding or the error.
    """
    for name, find in checks:
        try:
            result: Finding = {**find(), "name": name, "ok": True}
        except Exception as error:  # noqa: BLE001 - the error is the finding
            result = {"name": name, "ok": False, "summary": f"failed: {first_line(error)}"}
        print(json.dumps(result), flush=True)


def outcome(action: Callable[[], object]) -> str:
    """Return "works", or the error that `action` raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the error is the result
        return first_line(error)
    return "works"


def spread(values: Sequence[float], unit: str) -> Finding:
    """Return the median and the range of repeated measurements as a finding."""
    middle = statistics.median(values)
    summary = f"{middle:.1f} {unit} ({min(values):.1f} to {max(values):.1f}, n={len(values)})"
    return {"summary": summary, "median": middle, "values": list(values), "unit": unit}
