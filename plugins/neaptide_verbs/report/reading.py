"""Read a run directory in any state, in one pass and with bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.checkpoint import checkpoints, read_manifest
from neaptide.errors import CheckpointError, RunDirectoryError
from neaptide_toolkit.pages.text import clean, drawable, safe, scalar

from .files import flat, json_file, kept, number_of, objects, step_of, toml_file
from .memory import MemoryTable, memory_tables
from .series import Ends, StepSeries, Track
from .status import ENDINGS, Status, locked, status_of
from .steps import Steps, read_steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RECORDS = ("steps.csv", "summary.json", "events.jsonl", "metrics.jsonl", "config.toml")
_NAME, _METRICS, _SETTINGS, _CHECKPOINTS = 60, 300, 2000, 40
_JUMPS = {"jump.accepted": "accepted", "jump.refused": "refused", "jump.declined": "declined"}


@attrs.define
class Events:
    """The contents of events.jsonl."""

    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Number of events by level and name."""
    listed: Ends = attrs.field(factory=lambda: Ends(150))
    jumps: Ends = attrs.field(factory=lambda: Ends(500))
    verdicts: Counter[str] = attrs.field(factory=Counter)
    refused: StepSeries = attrs.field(factory=lambda: StepSeries(100))
    """The loss before each refused jump (predicted update)."""
    ending: dict[str, Any] | None = None
    skipped: tuple[int, int] = (0, 0)
    """The last skipped update, and the number of consecutive skipped updates up to this update."""


@attrs.define
class Metrics:
    """The contents of metrics.jsonl."""

    validation: Track = attrs.field(factory=Track)
    others: dict[str, Track] = attrs.field(factory=dict)


@attrs.frozen
class RunFacts:
    """All facts of a run. Every text in these facts is safe to print."""

    path: Path
    name: str
    status: Status
    steps: Steps
    events: Events
    metrics: Metrics
    memory: list[MemoryTable]
    """The table of steps.csv, then the tables of plugins' files."""
    summary: dict[str, Any]
    """Contents of summary.json; empty if the file does not exist, or if the run has continued
    since."""
    config: dict[str, Any]
    """The run's settings by dotted path."""
    origins: dict[str, str]
    machine: dict[str, Any]
    checkpoints: list[dict[str, Any]]
    checkpoint_count: int
    written: datetime | None
    """Time of the newest record."""
    damage: dict[str, int]
    """Number of damaged lines by file. Damaged lines are left out of all figures."""


def read_run(path: Path) -> RunFacts:
    """Read a run directory. RunDirectoryError if `path` is not a run directory."""
    _check(path)
    damage: Counter[str] = Counter()
    held = locked(path)
    table = toml_file(path / "config.toml", damage)
    config = flat(table or {})
    folders = _folders(path, table)
    steps, events = read_steps(path / "steps.csv", damage), _events(path / "events.jsonl", damage)
    summary = json_file(path / "summary.json", damage)
    status = status_of(
        held=held,
        last_step=steps.last,
        summary=summary,
        ending=events.ending,
        # A row after the last skipped update is an applied update, so no skipped update is last.
        in_a_row=events.skipped[1] if events.skipped[0] >= steps.last else 0,
        max_skipped=config.get("train.max_skipped"),
    )
    origins = json_file(path / "origins.json", damage) or {}
    listed, count = _checkpoints(path / "checkpoints")
    return RunFacts(
        path=path,
        name=clean(path.resolve().name or path.resolve(), _NAME),
        status=status,
        steps=steps,
        events=events,
        metrics=_metrics(path / "metrics.jsonl", damage),
        memory=[t for t in (steps.memory, *memory_tables(folders, damage)) if t.tracks],
        summary=safe(summary) if summary and status.kind == "finished" else {},
        config=_cleaned(config),
        origins={key: str(value) for key, value in _cleaned(flat(origins, depth=1)).items()},
        machine=_cleaned(flat(json_file(path / "machine.json", damage) or {})),
        checkpoints=listed,
        checkpoint_count=count,
        written=_written(path),
        damage={clean(name, _NAME): number for name, number in damage.items() if number},
    )


def _folders(path: Path, config: dict[str, Any] | None) -> list[Path]:
    """Return the folders of the run's plugins, or all folders if the config is missing."""
    folders = sorted((path / "plugins").glob("*/"))
    if not config:
        return folders
    enabled = config.get("plugins")
    names = enabled if isinstance(enabled, dict) else {}
    return [folder for folder in folders if folder.name in names]


def _check(path: Path) -> None:
    given = clean(path)
    try:
        if not path.is_dir():
            what = "a file" if path.is_file() else "no directory"
            msg = f"{given} is {what}; give the directory of a run, such as runs/quickstart"
            raise RunDirectoryError(msg)
        if any((path / name).is_file() for name in (*RECORDS, ".lock")):
            return
        inside = sorted({found.parent for name in RECORDS for found in path.glob(f"*/{name}")})
    except OSError as error:
        msg = f"cannot read {given}: {error.strerror}; give the directory of a run"
        raise RunDirectoryError(msg) from error
    names = ", ".join(clean(found) for found in inside[:3])
    hint = f"it holds runs: {names}" if inside else f"a run has {RECORDS[0]} or {RECORDS[-1]} in it"
    msg = f"{given} is not a run directory; {hint}"
    raise RunDirectoryError(msg)


def _events(path: Path, damage: Counter[str]) -> Events:
    found = Events()
    for line in objects(path, damage):
        name, level = clean(line.get("event", ""), _NAME), clean(line.get("level", ""), _NAME)
        if len(found.counts) < _METRICS or (level, name) in found.counts:
            found.counts[level, name] += 1
        if name in _JUMPS:
            _jump(found, _JUMPS[name], line)
        elif name in ENDINGS:
            found.ending = line
        elif name == "update.skipped":
            found.skipped = step_of(line.get("step")) or 0, step_of(line.get("in_a_row")) or 0
        found.listed.add(_cleaned(line))
    return found


def _jump(found: Events, verdict: str, line: dict[str, Any]) -> None:
    found.verdicts[verdict] += 1
    step, loss = step_of(line.get("step")), number_of(line.get("loss_before"))
    if verdict == "refused" and step is not None and loss is not None and drawable(loss):
        found.refused.add(step, loss, found.verdicts[verdict])
    kept_keys = {key: value for key, value in line.items() if key not in {"time", "level", "event"}}
    found.jumps.add({"verdict": verdict, **_cleaned(kept_keys)})


def _metrics(path: Path, damage: Counter[str]) -> Metrics:
    found = Metrics()
    for line in objects(path, damage):
        step, phase = step_of(line.pop("step", None)), clean(line.pop("phase", ""), _NAME)
        if step is None:
            damage[path.name] += 1
            continue
        for key, written in line.items():
            value = number_of(written)
            if value is None:
                continue
            if key == "val_loss":
                found.validation.add(step, phase, value)
            elif (name := clean(key, _NAME)) in found.others or len(found.others) < _METRICS:
                found.others.setdefault(name, Track()).add(step, phase, value)
    return found


def _checkpoints(root: Path) -> tuple[list[dict[str, Any]], int]:
    try:
        paths = checkpoints(root)
    except OSError:
        return [], 0
    return [_checkpoint(path) for path in kept(paths, _CHECKPOINTS)], len(paths)


def _checkpoint(path: Path) -> dict[str, Any]:
    name = clean(path.name)
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return {"name": name, "problem": clean(error)}
    nbytes = sum(entry.bytes for entry in manifest.files.values())
    phase = clean(manifest.facts.get("phase", ""), _NAME)
    return {"name": name, "step": manifest.step, "phase": phase, "bytes": nbytes}


def _written(path: Path) -> datetime | None:
    times = []
    for name in RECORDS:
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return datetime.fromtimestamp(max(times), UTC) if times else None


def _cleaned(table: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the table that is safe to print. Lists and inner tables become text."""
    pairs: Sequence[tuple[str, Any]] = list(table.items())[:_SETTINGS]
    return {
        clean(key, _NAME * 2): scalar(
            json.dumps(safe(value)) if isinstance(value, dict | list) else value
        )
        for key, value in pairs
    }
