"""A CSV file to which rows are appended. A resumed run appends to the same file."""

from __future__ import annotations

import csv
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_DIGITS = 15  # the most digits of a step; a longer number is damaged


class Rows:
    """Appends rows whose first column is a step. Rows are flushed after `delay` seconds.

    If the file exists, the first new row removes two kinds of old rows from the file: damaged rows,
    and rows whose step is not before the new row's step. So a new run begins a new file, and a
    resumed run continues the old file. Call `flush` before a checkpoint is saved. Otherwise, if the
    process is killed, rows from before the checkpoint may be missing.
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
        whole.replace(self.path)  # if the process is killed before, the old file is unchanged
        file = self.path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(file, lineterminator="\n")
        return file

    def _before(self, step: int) -> list[str]:
        if not self.path.exists():
            return []
        # Bytes that are not text are damage. Only the row that contains them is dropped.
        text = self.path.read_text(encoding="utf-8", errors="surrogateescape")
        rows = text.splitlines(keepends=True)
        return [row for row in rows if self._is_complete(row) and int(row.split(",")[0]) < step]

    def _is_complete(self, row: str) -> bool:
        """Return whether `row` is a data row that is neither damaged nor cut off by a kill."""
        step, *others = row.split(",")
        whole = step.isdecimal() and len(step) <= _DIGITS
        return whole and len(others) == len(self._columns) - 1 and row.endswith("\n")

    def flush(self) -> None:
        """Pass all rows to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
