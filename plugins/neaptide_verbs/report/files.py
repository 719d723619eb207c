"""Read a run's files.

A file may be damaged, incomplete or still growing, so only complete lines are used.
"""

from __future__ import annotations

import csv
import json
import tomllib
from typing import TYPE_CHECKING, Any

from neaptide.io.appending import LONGEST_LINE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LARGEST_FILE = 1 << 24  # bytes of a file that is read at once
_DIGITS = 15  # of the largest step: floats represent such integers exactly


def lines(path: Path, damage: Counter[str]) -> Iterator[str]:
    """Yield the complete lines of a file, one at a time; nothing if the file does not exist.

    A last line without a newline is incomplete. Such a line is counted in `damage` under the file's
    name. A line that is longer than any line that a run writes is also counted there.
    """
    if not path.is_file():
        damage[path.name] += path.exists()  # for example, `path` is a folder
        return
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                if line.endswith(b"\n"):
                    yield line.decode("utf-8", "replace")
                    continue
                damage[path.name] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
    except OSError:
        damage[path.name] += 1


def rows(path: Path, damage: Counter[str]) -> Iterator[list[str]]:
    """Yield the header of a CSV file, then each row that has as many cells as the header."""
    columns = 0
    for line in lines(path, damage):
        cells = _cells(line)
        if not columns:
            columns = len(cells)
        if len(cells) == columns:
            yield cells
        else:
            damage[path.name] += 1


def _cells(line: str) -> list[str]:
    # Lines are parsed one by one, so that a stray quote damages only its own row.
    if '"' not in line:
        return line.rstrip("\r\n").split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def objects(path: Path, damage: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that has one JSON object per line."""
    for line in lines(path, damage):
        value = _json(line)
        if isinstance(value, dict):
            yield value
        else:
            damage[path.name] += 1


def json_file(path: Path, damage: Counter[str]) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it cannot be read."""
    text = _whole(path, damage)
    value = None if text is None else _json(text)
    if text is not None and not isinstance(value, dict):
        damage[path.name] += 1
    return value if isinstance(value, dict) else None


def toml_file(path: Path, damage: Counter[str]) -> dict[str, Any] | None:
    """Return the table in a TOML file; None if it cannot be read."""
    text = _whole(path, damage)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        damage[path.name] += 1
        return None


def _whole(path: Path, damage: Counter[str]) -> str | None:
    try:
        if not path.is_file():
            damage[path.name] += path.exists()
            return None
        if path.stat().st_size <= _LARGEST_FILE:
            return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    damage[path.name] += 1
    return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def step_of(cell: Any) -> int | None:
    """Return the step in a CSV cell or a JSON value; None for anything else."""
    if isinstance(cell, str):
        whole = cell.isascii() and cell.isdecimal() and len(cell) <= _DIGITS
        return int(cell) if whole else None
    whole = isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell < 10**_DIGITS
    return cell if whole else None


def number_of(cell: Any) -> float | None:
    """Return the number in a CSV cell or a JSON value; None for anything else.

    The text `"nan"` is a number.
    """
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def flat(table: dict[str, Any], *, depth: int = 8) -> dict[str, Any]:
    """Return a nested table as a flat table with dotted keys. Empty tables are kept as values."""
    found: dict[str, Any] = {}
    pending: list[tuple[str, Any, int]] = [("", table, 0)]
    while pending:
        path, value, level = pending.pop()
        if isinstance(value, dict) and value and level < depth:
            prefix = f"{path}." if path else ""
            inner = [(f"{prefix}{key}", item, level + 1) for key, item in value.items()]
            pending.extend(reversed(inner))
        elif path:
            found[path] = value
    return found


def kept(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` of the values: the first and the last ones."""
    if len(values) <= most:
        return list(values)
    return [*values[: most // 2], *values[-(most - most // 2) :]]
