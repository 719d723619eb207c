"""How long a drive lasts that is written in every step."""

from __future__ import annotations

from neaptide.io.units import size

DAY = 86_400.0
RATED = 600e12
"""Bytes that may be written to a drive of 1 TB, by the data sheets of many consumer drives. Drives
for servers have 5 to 15 times as much."""


def days(written: int, seconds: float, rated: float = RATED) -> float:
    """Return the days of training after which a drive has reached its rated life.

    Args:
        written: bytes in a step.
        seconds: of a step.
        rated: bytes that may be written to the drive.
    """
    return rated / written * seconds / DAY if written else float("inf")


def told(
    written: int, seconds: float | None, bound: str | None = None, rated: float = RATED
) -> str:
    """Return one line on what a step writes and, with its `seconds`, how long a drive lasts.

    `bound` says how the rate a day is known, such as `at most`.
    """
    text = f"an update writes {size(written)} to the disk"
    if seconds is None or not written:
        return text
    rate = f"{bound} " if bound else ""
    least = "at least " if bound else ""
    lasts = days(written, seconds, rated)
    number = f"{least}{lasts:,.0f} days" if lasts >= 1 else "less than a day"
    return (
        f"{text}, {rate}{size(int(written / seconds * DAY))} a day: a drive rated for "
        f"{rated / 1e12:,.6g} TB lasts {number}"
    )
