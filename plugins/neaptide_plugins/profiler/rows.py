"""A CSV file to which rows are appended. A resumed run appends to the same file."""

from __future__ import annotations

import csv
import os
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.io.folder import Folder


_DIGITS = 15  # the most digits of a step; a longer number is damaged


class Rows:
    """Appends rows whose first column is a step. Rows are flushed after `delay` seconds.

    If the file exists, the first new row removes two kinds of old rows from the file: damaged rows,
    and rows whose step is not before the new row's step. So a new run begins a new file, and a
    resumed run continues the old file. Call `flush` before a checkpoint is saved. Otherwise, if the
    process is killed, rows from before the checkpoint may be missing.
    """

    def __init__(
        self, folder: Folder, name: str, columns: Sequence[str], delay: float = 1.0
    ) -> None:
        self._folder, self._name = folder, name
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
        text = "".join([",".join(self._columns) + "\n", *kept])
        self._folder.replace(self._name, text.encode("utf-8", "surrogateescape"))
        descriptor = self._folder.open(self._name, os.O_WRONLY | os.O_APPEND)
        file = os.fdopen(descriptor, "a", newline="", encoding="utf-8")
        self._writer = csv.writer(file, lineterminator="\n")
        return file

    def _before(self, step: int) -> list[str]:
        if self._folder.stat(self._name) is None:
            return []
        # Bytes that are not text are damage. Only the row that contains them is dropped.
        text = self._folder.read(self._name).decode("utf-8", "surrogateescape")
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
