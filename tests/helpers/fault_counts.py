"""Prints what became of all faults of a session of pytest, at its end."""

from __future__ import annotations

from typing import Any

from fault_verdicts import counted


def print_counts(terminalreporter: Any) -> None:
    """Print the counts, if a fault was tried; a test notes each by `record_property`."""
    kinds = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == "fault"
    ]
    if kinds:
        terminalreporter.write_line(counted(kinds))
