"""Read a run's files.

A file may be damaged, incomplete or still growing, so only complete lines are used.
"""

from __future__ import annotations

import csv
import json
import os
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from neaptide.config.toml import parse
from neaptide.errors import ConfigError
from neaptide.io.folder import Folder
from neaptide_toolkit.pages.text import name
from neaptide_toolkit.records.appending import LONGEST_LINE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_READ = 1 << 30
"""Largest number of bytes that are read of the lines of a file."""
_LARGEST_FILE = 1 << 22  # bytes of a file that is read at once
_MOST_LINES = 1 << 23
_MOST_DAMAGE = 100_000  # damaged lines: after them a file is no run's
_LONGEST_NAME = 61
_LONGEST_DAMAGE = 16  # times the longest line
_MOST_COLUMNS = 500
_DIGITS = 15  # of the largest step: floats represent such integers exactly


def lines(path: Path, damage: Counter[str]) -> Iterator[str]:
    """Yield the complete lines of a file, one at a time; nothing if the file does not exist.

    A last line without a newline is incomplete. Such a line is counted in `damage` under the file's
    name. A line that is longer than any line that a run writes is also counted there. After 100,000
    damaged lines, or 8 million lines, the other lines are only counted in `damage`. What follows a
    line of many MiB, or the first GiB, is not read.
    """
    left, number = MOST_READ, 0
    try:
        with opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                left, number = left - len(line), number + 1
                if left < 0 or number > _MOST_LINES or damage[path.name] >= _MOST_DAMAGE:
                    damage[path.name] += 1 + _count(file, left)
                    return
                if line.endswith(b"\n"):
                    yield line.decode("utf-8", "replace")
                    continue
                damage[path.name] += 1
                for _ in range(_LONGEST_DAMAGE):
                    if not line or line.endswith(b"\n"):
                        break
                    line = file.readline(LONGEST_LINE)
                else:
                    return
    except FileNotFoundError:
        return
    except OSError:  # also for example a folder, a link or a named pipe
        damage[path.name] += 1


def _count(file: IO[bytes], left: int) -> int:
    """Return the number of lines in the next `left` bytes of a file."""
    pieces = iter(partial(file.read, LONGEST_LINE), b"")
    return sum(piece.count(b"\n") for piece in islice(pieces, max(0, left) // LONGEST_LINE))


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file of a run directory for reading; OSError if it is anything else."""
    with closing(Folder(path.parent)) as folder, os.fdopen(folder.open(path.name), "rb") as file:
        yield file


def rows(path: Path, damage: Counter[str]) -> Iterator[list[str]]:
    """Yield the header of a CSV file, then each row that has as many cells as the header."""
    columns = 0
    for line in lines(path, damage):
        cells = _cells(line)
        if not columns:
            columns = len(cells)
            if columns > _MOST_COLUMNS:
                damage[path.name] += 1
                return
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
        return parse(text)
    except ConfigError:
        damage[path.name] += 1
        return None


def _whole(path: Path, damage: Counter[str]) -> str | None:
    try:
        with closing(Folder(path.parent)) as folder:
            return folder.read(path.name, _LARGEST_FILE).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        damage[path.name] += 1
        return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def named(text: str) -> str:
    """Return a name of any length as safe text."""
    return name(text[:_LONGEST_NAME])  # `name` remembers its arguments


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
