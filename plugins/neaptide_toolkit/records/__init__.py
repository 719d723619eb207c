"""The records of a run: appended line by line, and cut back and checked at a resume."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import ge, instance_of

from neaptide.api.records import COLUMNS
from neaptide.io.jsonable import jsonable
from neaptide.text import shorten

from .appending import LONGEST_LINE, AppendedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neaptide.api.records import StepRecord
    from neaptide.io.folder import Folder

ROWS, METRICS, EVENTS = RECORDS = ("steps.csv", "metrics.jsonl", "events.jsonl")
_HEADER = ",".join(COLUMNS)
_DIGITS = 15  # the most digits of a step; a row with a longer number is damaged
_NO_STEP = -1.0
_EVALUATED = '"val_loss"'
_LONGEST_TEXT = 1000  # if a line is too long, its values are cut to this many characters
_cells = attrgetter(*COLUMNS)


@attrs.frozen
class _Extent:
    """What a checkpoint knows about a record: all its lines, and how many are before the update."""

    lines: int = attrs.field(validator=[instance_of(int), ge(0)])
    before: int = attrs.field(validator=[instance_of(int), ge(0)])
    sha256: str = attrs.field(validator=instance_of(str))


class _Written:
    """Counts and digests the lines of a record, without the header.

    The last validation loss is not what a checkpoint of its update knows: a resume measures it
    again, perhaps on other data.
    """

    def __init__(self, name: str, lines: Iterable[str] = ()) -> None:
        self._name, self._step_of = name, _READERS[name]
        self._sha256, self._lines = hashlib.sha256(), 0
        self._last, self._of_last = 0.0, 0  # the last step, and the number of its lines
        self._evaluated: tuple[float, _Extent | None] = -1.0, None  # before that evaluation
        for line in lines:
            self.add(line)

    def add(self, line: str) -> None:
        step = self._step_of(line)
        if self._name == METRICS and _EVALUATED in line and self._evaluated[0] < step < math.inf:
            self._evaluated = step, self.saved(step)
        self._sha256.update(_bytes([line]))
        self._lines += 1
        if self._last < step < math.inf:
            self._last, self._of_last = step, 0
        self._of_last += step == self._last

    def saved(self, step: float) -> _Extent:
        at, extent = self._evaluated
        if extent is not None and at == step:
            return extent
        before = self._lines - (self._of_last if step == self._last else 0)
        return _Extent(self._lines, before, self._sha256.hexdigest())


class Records:
    """The records in the folder of a run. The methods raise OSError."""

    names = RECORDS

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        headers = {ROWS: _HEADER}
        self._files = {name: AppendedFile(folder, name, headers.get(name, "")) for name in RECORDS}
        self._written: dict[str, _Written] = {}  # empty before `remove` or `rewind`
        self._known: Counter[str] = Counter()  # the events of earlier processes without a step
        self._lock = RLock()  # plugins log in threads, too

    def row(self, record: StepRecord) -> None:
        """Append a row to steps.csv; None becomes an empty cell."""
        # No cell needs quotes, as each cell is a number or the name of a phase.
        self._append(ROWS, ",".join(map(_cell, _cells(record))))

    def line(self, name: str, values: Mapping[str, Any]) -> None:
        """Append a line of JSON. If it is too long, shorten the values.

        A resumed run does not write an event without a step again.
        """
        plain = jsonable(values)
        line = json.dumps(plain)
        if len(line) >= LONGEST_LINE:
            line = json.dumps({key: _cut(value) for key, value in plain.items()})
        self._append(name, line)

    def _append(self, name: str, line: str) -> None:
        with self._lock:
            if name == EVENTS and self._known and self._known[event := _timeless(line)]:
                self._known[event] -= 1
                return
            self._files[name].append(line)
            if name in self._written:
                self._written[name].add(line)

    def close(self, name: str) -> None:
        """Close a file."""
        self._files[name].close()

    def remove(self) -> None:
        """Begin new records."""
        for name in RECORDS:
            self._folder.unlink(name)
            self._written[name] = _Written(name)

    def saved(self, step: int) -> dict[str, Any]:
        """Return what the checkpoint of update `step` has to know, as plain JSON."""
        with self._lock:
            return {name: attrs.asdict(one.saved(step)) for name, one in self._written.items()}

    def check(self, saved: Any) -> None:
        """Raise an error unless `saved` has the form of what `saved` returns."""
        for one in saved.values():
            _Extent(**one)

    def rewind(self, step: int, saved: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
        """Remove what is later than update `step`, or damaged. Its checkpoint knows `saved`.

        Return the last update with a row, and by file what is lost.
        """
        kept, lost = {}, {}
        for name in RECORDS:
            content = self._content(name)
            known = _Extent(**saved[name]) if name in saved else None
            kept[name], told = _rewound(name, _lines(name, content), step, known)
            self._replace(name, content, kept[name])
            if told:
                lost[name] = told
        self._known = Counter(_timeless(one) for one in kept[EVENTS] if _json_step(one) == _NO_STEP)
        return max([0, *(int(_csv_step(row)) for row in kept[ROWS] if ",true," not in row)]), lost

    def forget_evaluation(self, step: int) -> None:
        """Remove the validation loss of update `step`."""
        content = self._content(METRICS)
        kept = [
            line
            for line in _lines(METRICS, content)
            if not (_EVALUATED in line and _json_step(line) == step)
        ]
        self._replace(METRICS, content, kept)

    def _content(self, name: str) -> bytes:
        try:
            return self._folder.read(name)
        except FileNotFoundError:
            return b""

    def _replace(self, name: str, content: bytes, lines: list[str]) -> None:
        kept = _bytes([_HEADER, *lines] if name == ROWS else lines) if content else b""
        if kept != content:
            self._folder.replace(name, kept)
        self._written[name] = _Written(name, lines)


def _rewound(
    name: str, lines: list[str], step: int, saved: _Extent | None
) -> tuple[list[str], str]:
    """Return the lines to keep for a resume after update `step`, and what is lost, or "".

    If the first lines are those that the checkpoint knows, they are kept, and lines of `step`.
    Otherwise, or if it knows none, all lines are kept that are readable and not later.
    """
    found = [(line, _READERS[name](line)) for line in lines]
    damaged = sum(at == math.inf for _, at in found)
    removed = f"damaged lines are removed ({damaged}); training is not affected" if damaged else ""
    if saved is None:
        return [line for line, at in found if at <= step], removed
    count = saved.lines
    if hashlib.sha256(_bytes(lines[:count])).hexdigest() == saved.sha256:
        return lines[:count] + [line for line, at in found[count:] if at == step], removed
    # A line without a step that follows a later update will be written again.
    later = next((i for i, (_, at) in enumerate(found) if step < at < math.inf), len(found))
    kept = [one for i, one in enumerate(found) if one[1] <= step and (i < later or one[1] >= 0)]
    missing = max(count - len(kept), saved.before - sum(at < step for _, at in kept))
    number = min(count, max(damaged, missing)) or "at least 1"
    return [line for line, _ in kept], (
        f"lines up to update {step} are damaged or missing ({number} of {count}); training is not "
        f"affected, the report shows gaps"
    )


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST_TEXT else shorten(text, _LONGEST_TEXT)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(name: str, content: bytes) -> list[str]:
    # A damaged file may have bytes that are not UTF-8: they become surrogates.
    text = content.decode("utf-8", "surrogateescape").removesuffix("\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")] if content else []
    return [line for line in lines if name != ROWS or line != _HEADER]


def _bytes(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _timeless(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "time"})


def _csv_step(line: str) -> float:
    first = line.split(",", 1)[0]
    # A row with too few commas is incomplete: damaged, as one with step inf.
    whole = first.isdecimal() and len(first) <= _DIGITS and line.count(",") == len(COLUMNS) - 1
    return int(first) if whole else math.inf


def _json_step(line: str) -> float:
    try:
        step = json.loads(line).get("step", _NO_STEP)
    except (ValueError, RecursionError, AttributeError):
        return math.inf
    return step if isinstance(step, int | float) else math.nan


_READERS = {ROWS: _csv_step, METRICS: _json_step, EVENTS: _json_step}
