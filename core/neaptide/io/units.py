"""Formats bytes and seconds as readable text."""

from __future__ import annotations

import math

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: float, digits: int = 1) -> str:
    """Return a number of bytes as text such as `1.5 GiB`, with `digits` decimals."""
    power = _power(nbytes, digits)
    return f"{nbytes / 1024**power:.{digits if power else 0}f} {UNITS[power]}"


def duration(seconds: float) -> str:
    """Return a time as text: `250 ms`, `1.5 s`, `12:05`, `1:02:03`."""
    # A time that rounds up to the next unit is written in the next unit: 59.97 s is 1:00.
    if round(seconds * 1000) < 1000:  # noqa: PLR2004 - less than a second
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:  # noqa: PLR2004 - less than a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _power(nbytes: float, digits: int) -> int:
    last = len(UNITS) - 1
    power = min(int(math.log2(max(nbytes, 1))) // 10, last)
    written = round(nbytes / 1024**power, digits if power else 0)
    return power + 1 if written >= 1024 and power < last else power  # noqa: PLR2004 - rounds up to the next unit
