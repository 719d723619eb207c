"""A CSV file that grows row by row, and that a resumed run continues."""

from __future__ import annotations

import csv
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_DIGITS = 15  # of a step; a longer number is damage


class Rows:
    """Appends rows whose first column is a step; at most `delay` seconds of them are held back.

    The first row decides what stays of an older file: rows of earlier steps, complete ones. A run
    that starts anew thus starts the file anew, a resumed one goes on where it stood. What a run
    is resumed from has to be saved after a `flush`, or a kill leaves a gap.
    """

    def __init__(self, path: Path, columns: Sequence[str], delay: float = 1.0) -> None:
        self.path = path
        self._columns = columns
        self._delay = delay
        self._file: IO[str] | None = None
        self._writer: Any = None
        self._flushed = 0.0

    def append(self, step: int, *values: Any) -> None:
        """Append a row; None becomes an empty cell."""
        if self._file is None:
            self._file = self._continued(step)
        self._writer.writerow((step, *values))
        now = time.monotonic()
        if now - self._flushed >= self._delay:
            self._flushed = now
            self._file.flush()

    def _continued(self, step: int) -> IO[str]:
        kept = self._before(step)
        whole = self.path.with_suffix(".partial")
        text = "".join([",".join(self._columns) + "\n", *kept])
        whole.write_text(text, encoding="utf-8", errors="surrogateescape")
        whole.replace(self.path)  # a kill meanwhile leaves the older file as it was
        file = self.path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(file, lineterminator="\n")
        return file

    def _before(self, step: int) -> list[str]:
        if not self.path.exists():
            return []
        # Bytes that are no text come from damage, which costs a row and not the file.
        text = self.path.read_text(encoding="utf-8", errors="surrogateescape")
        rows = text.splitlines(keepends=True)
        return [row for row in rows if self._is_complete(row) and int(row.split(",")[0]) < step]

    def _is_complete(self, row: str) -> bool:
        """Return whether this is no header, no damage, and was not cut short by a kill."""
        step, *others = row.split(",")
        whole = step.isdecimal() and len(step) <= _DIGITS
        return whole and len(others) == len(self._columns) - 1 and row.endswith("\n")

    def flush(self) -> None:
        """Hand every row to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
