"""A CSV file that grows row by row, and that a resumed run continues."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Rows:
    """Appends rows whose first column is a step; each is on disk when `append` returns.

    The first row decides what stays of an older file: rows of earlier steps, complete ones. A run
    that starts anew thus starts the file anew, a resumed one goes on where it stood.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = columns
        self._file: IO[str] | None = None

    def append(self, step: int, *values: Any) -> None:
        """Append a row; None becomes an empty cell."""
        if self._file is None:
            kept = self._before(step)
            self._file = self._path.open("w", newline="", buffering=1, encoding="utf-8")
            self._file.writelines([",".join(self._columns) + "\n", *kept])
        csv.writer(self._file, lineterminator="\n").writerow((step, *values))

    def _before(self, step: int) -> list[str]:
        if not self._path.exists():
            return []
        rows = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [row for row in rows if self._is_complete(row) and int(row.split(",")[0]) < step]

    def _is_complete(self, row: str) -> bool:
        """Return whether this is no header and was not cut short by a kill."""
        cells = row.split(",")
        return cells[0].isdecimal() and len(cells) == len(self._columns) and row.endswith("\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
