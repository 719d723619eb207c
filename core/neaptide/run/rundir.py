"""The run directory: one process locks it, and a crash during a write damages no file."""

from __future__ import annotations

import json
import math
import os
from contextlib import contextmanager, suppress
from itertools import count
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any

from neaptide.api.memory import MemorySample
from neaptide.api.records import COLUMNS
from neaptide.config.values import shorten
from neaptide.errors import RunDirectoryError
from neaptide.io.appending import LONGEST_LINE, AppendedFile
from neaptide.io.jsonable import jsonable
from neaptide.io.locking import lock
from neaptide.io.logging import CONSOLE
from neaptide.io.replacing import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from neaptide.api.records import StepRecord

_cells = attrgetter(*COLUMNS)
_DIGITS = 15  # largest number of digits of a step; a row with a longer number is damaged
_LONGEST_TEXT = 1000  # if a line is too long, its values are cut to this many characters
_RECORDS = ("steps.csv", "metrics.jsonl", "events.jsonl")


class RunDirectory:
    """Locks a run directory and writes its files.

    If a write fails, for example on a full disk, the data of this write is lost and training
    continues. The first such error logs a warning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.checkpoints = self.path / "checkpoints"
        self._lock = _locked(self.path)
        self._process = os.getpid()
        self._warned = False
        self._appended: dict[str, AppendedFile] = {}
        # Listed here, because plugins of this run may write new files before the first step.
        self._earlier = _kept_files(self.path)

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in self._appended.values():
            file.close()
        self._lock.close()

    def rewind(self, step: int) -> int:
        """Remove all rows and lines after update `step`; return the last update with a row."""
        with _prepared(self.path):
            rows = _keep(self.path / "steps.csv", lambda line: _csv_step(line) <= step)
            for name in ("metrics.jsonl", "events.jsonl"):
                _keep(self.path / name, lambda line: _json_step(line) <= step)
        return max([0, *(int(_csv_step(row)) for row in rows if ",true," not in row)])

    def peaks_of(self, step: int) -> dict[str, MemorySample]:
        """Return the memory peaks by phase, from the summary of a run that ended at `step`."""
        try:
            summary = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
            peaks = summary["peak_bytes"].items() if summary["steps"] == step else ()
            return {phase: MemorySample(**peak) for phase, peak in peaks}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}  # no run has ended at this step, or the file is damaged

    def forget_evaluation(self, step: int) -> None:
        """Remove the validation loss of update `step`, because it will be measured again."""
        path = self.path / "metrics.jsonl"

        def forget() -> None:
            _keep(path, lambda line: not ('"val_loss"' in line and _json_step(line) == step))

        self._contained(path, forget)

    def start_afresh(self) -> Path | None:
        """Remove the records of an earlier run. The earlier run must have no checkpoints.

        The report and the plugins' files of the earlier run are moved to a new folder `earlier-N`.
        Returns this folder, or None if there was nothing to move.
        """
        with _prepared(self.path):
            for name in (*_RECORDS, "origins.json", "summary.json"):
                (self.path / name).unlink(missing_ok=True)
            now = _kept_files(self.path)
            earlier = [path for path, file in self._earlier.items() if now.get(path) == file]
            if not earlier:
                return None
            folders = (self.path / f"earlier-{number}" for number in count(1))
            aside = next(folder for folder in folders if not os.path.lexists(folder))
            for path in earlier:
                target = aside / path.relative_to(self.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        return aside

    def row(self, record: StepRecord) -> None:
        """Append a row to steps.csv; None becomes an empty cell."""
        # No cell needs quotes, as each cell is a number or the name of a phase.
        self._append("steps.csv", ",".join(map(_cell, _cells(record))))

    def line(self, name: str, values: Mapping[str, Any]) -> None:
        """Append one JSON line to the file `name`. If the line is too long, shorten the values."""
        plain = jsonable(values)
        line = json.dumps(plain)
        if len(line) >= LONGEST_LINE:
            line = json.dumps({key: _cut(value) for key, value in plain.items()})
        self._append(name, line)

    def _append(self, name: str, line: str) -> None:
        if name not in self._appended:
            header = ",".join(COLUMNS) if name == "steps.csv" else ""
            self._appended[name] = AppendedFile(self.path / name, header)
        self._contained(self.path / name, lambda: self._appended[name].append(line))

    def whole(self, name: str, text: str) -> None:
        """Replace the file `name` atomically."""
        path = self.path / name
        self._contained(path, lambda: replace_file(path, text.encode()))

    def _contained(self, path: Path, write: Callable[[], None]) -> None:
        if os.getpid() != self._process:
            return  # in a forked child; only the parent writes
        try:
            write()
        except OSError as error:
            if not self._warned:
                self._warned = True
                CONSOLE.warning(
                    "cannot write %s: %s; training goes on without it", path, error.strerror
                )


def _kept_files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return the path, device and inode of the report and of each file of a plugin."""
    # Linked folders are skipped: the user made them, and they may be on another disk.
    of_plugins = (path for path in directory.glob("plugins/*/*") if not path.parent.is_symlink())
    stats = {path: path.lstat() for path in (*directory.glob("report.html"), *of_plugins)}
    return {path: (stat.st_dev, stat.st_ino) for path, stat in stats.items()}


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST_TEXT else shorten(text, _LONGEST_TEXT)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _prepared(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"cannot write in the run directory {path}: {error.strerror}; set run.dir elsewhere"
        raise RunDirectoryError(msg) from error


def _locked(path: Path) -> IO[str]:
    with _prepared(path):
        path.mkdir(parents=True, exist_ok=True)
        file = (path / ".lock").open("a+", encoding="utf-8")
    try:
        held = lock(file)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        msg = f"another process (pid {holder}) trains in {path}; wait for it or set run.dir"
        raise RunDirectoryError(msg) from None
    if not held:
        CONSOLE.warning("this system has no file locks: do not start a second process in %s", path)
    with suppress(OSError):  # the process id is only for the message above
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{os.getpid()}\n".encode())
    return file


def _keep(path: Path, wanted: Callable[[str], bool]) -> list[str]:
    if not path.exists():
        return []
    # A damaged file may have bytes that are not UTF-8; `wanted` decides about such lines.
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    kept = [line for line in lines if wanted(line)]
    text = "".join(f"{line}\n" for line in kept)
    replace_file(path, text.encode("utf-8", "surrogateescape"))
    return kept


def _csv_step(line: str) -> float:
    first = line.split(",", 1)[0]
    if first == COLUMNS[0]:
        return -1
    # A row with too few commas is incomplete; with step inf the caller removes the row.
    whole = first.isdecimal() and len(first) <= _DIGITS and line.count(",") == len(COLUMNS) - 1
    return int(first) if whole else math.inf


def _json_step(line: str) -> float:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return math.inf
    step = found.get("step", -1) if isinstance(found, dict) else None
    return step if isinstance(step, int | float) else math.inf
