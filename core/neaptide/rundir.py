"""The run directory: one process at a time, rows as they come, files whole after a crash."""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
from typing import IO, TYPE_CHECKING, Any

from .errors import RunDirectoryError
from .logging import CONSOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

COLUMNS = (
    "step",
    "phase",
    "loss",
    "was_predicted",
    "grad_norm",
    "confidence",
    "seconds",
    "device_bytes",
    "host_bytes",
)


class RunDirectory:
    """Holds the lock on a run directory and writes its files.

    A full disk does not end a run: the row is lost with one warning, and the next is tried again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.checkpoints = self.path / "checkpoints"
        self._lock = _locked(self.path)
        self._warned = False

    def close(self) -> None:
        """Give the directory back."""
        self._lock.close()

    def rewind(self, step: int) -> int:
        """Drop what was written after update `step`, so that a resumed run continues the files.

        Returns the last update that still has a row.
        """
        rows = _keep(self.path / "steps.csv", lambda line: _csv_step(line) <= step)
        for name in ("metrics.jsonl", "events.jsonl"):
            _keep(self.path / name, lambda line: _json_step(line) <= step)
        return max((int(_csv_step(row)) for row in rows if ",true," not in row), default=0)

    def start_afresh(self) -> None:
        """Remove the records of an earlier run; its checkpoints must be gone or refused before."""
        for name in ("steps.csv", "metrics.jsonl", "events.jsonl", "summary.json"):
            (self.path / name).unlink(missing_ok=True)

    def row(self, values: Mapping[str, Any]) -> None:
        """Append a row to steps.csv; missing columns and None stay empty."""
        path = self.path / "steps.csv"

        def write() -> None:
            new = not path.exists() or path.stat().st_size == 0
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow({key: _cell(value) for key, value in values.items()})

        self._contained(path, write)

    def line(self, name: str, values: Mapping[str, Any]) -> None:
        """Append one JSON line to the file `name`."""
        path = self.path / name

        def write() -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(jsonable(values)) + "\n")

        self._contained(path, write)

    def whole(self, name: str, text: str) -> None:
        """Replace the file `name` atomically."""
        path = self.path / name

        def write() -> None:
            temporary = path.with_name(f".{name}.tmp")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)

        self._contained(path, write)

    def _contained(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._warned:
                self._warned = True
                CONSOLE.warning(
                    "cannot write %s: %s; training goes on without it", path, error.strerror
                )


def jsonable(value: Any) -> Any:
    """Return `value` as JSON can hold it: non-finite floats become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else value


def _locked(path: Path) -> IO[str]:
    lock = path / ".lock"
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+", encoding="utf-8")
    except OSError as error:
        msg = f"cannot write in the run directory {path}: {error.strerror}; set run.dir elsewhere"
        raise RunDirectoryError(msg) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        msg = f"another process (pid {holder}) trains in {path}; wait for it or set run.dir"
        raise RunDirectoryError(msg) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _keep(path: Path, wanted: Callable[[str], bool]) -> list[str]:
    if not path.exists():
        return []
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if wanted(line)]
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    temporary.replace(path)
    return kept


def _csv_step(line: str) -> float:
    first = line.split(",", 1)[0]
    if first == COLUMNS[0]:
        return -1
    # A row cut short by a kill has too few commas: it goes, whatever number it starts with.
    return int(first) if first.isdecimal() and line.count(",") == len(COLUMNS) - 1 else math.inf


def _json_step(line: str) -> float:
    try:
        return float(json.loads(line).get("step", -1))
    except ValueError:
        return math.inf
