"""Read a run directory in any state, in one pass and with bounded memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.checkpoint import checkpoints, read_manifest
from neaptide.errors import CheckpointError, RunDirectoryError
from neaptide_toolkit.pages.text import clean, drawable, safe, scalar

from .files import flat, json_file, kept, named, number_of, objects, step_of, toml_file
from .memory import MemoryTable, memory_tables
from .series import OTHER, Ends, StepSeries, Track
from .status import ENDINGS, Status, locked, status_of
from .steps import Steps, read_steps

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = ("steps.csv", "summary.json", "events.jsonl", "metrics.jsonl", "config.toml")
_NAME, _METRICS, _SETTINGS, _CHECKPOINTS, _REASONS = 60, 300, 2000, 40, 40
_EVENTS, _RARE, _FIELDS = 300, 20, 40
_NUMBER = re.compile(r"(?<![\w.-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w-])")
_JUMPS = {"jump.accepted": "accepted", "jump.refused": "refused", "jump.declined": "declined"}


@attrs.define
class Events:
    """The contents of events.jsonl."""

    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Number of events by level and name; events of rare names are counted as `OTHER`."""
    listed: Ends = attrs.field(factory=lambda: Ends(150))
    jumps: Ends = attrs.field(factory=lambda: Ends(500))
    verdicts: Counter[str] = attrs.field(factory=Counter)
    reasons: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Number of Predict steps by verdict and reason, without the numbers in the reason."""
    per_token: bool = False
    """True if the loss is the mean cross-entropy of tokens in nats, so that it has a perplexity."""
    refused: StepSeries = attrs.field(factory=lambda: StepSeries(100))
    """The loss before each refused jump (predicted update)."""
    ending: dict[str, Any] | None = None
    skipped: tuple[int, int] = (0, 0)
    """The last skipped update, and the number of consecutive skipped updates up to this update."""


@attrs.define
class Metrics:
    """The contents of metrics.jsonl."""

    validation: Track = attrs.field(factory=Track)
    tokens: Track = attrs.field(factory=Track)
    """Tokens per second, measured from one line to the next."""
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
    plugins = path / "plugins"
    inside = [] if plugins.is_symlink() else sorted(plugins.glob("*/"))
    folders = [folder for folder in inside if not folder.is_symlink()]
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
        found.counts[_kind(found.counts, level, name)] += 1
        if name in _JUMPS:
            _jump(found, _JUMPS[name], line)
        elif name in ENDINGS:
            found.ending = line
        elif name == "loss.per_token":
            found.per_token = True
        elif name == "update.skipped":
            found.skipped = step_of(line.get("step")) or 0, step_of(line.get("in_a_row")) or 0
        found.listed.add(_cleaned(line, _FIELDS))
    return found


def _kind(counts: Counter[tuple[str, str]], level: str, name: str) -> tuple[str, str]:
    """Return the level and the name under which an event is counted."""
    for most, kind in ((_EVENTS, (level, name)), (_EVENTS + _RARE, (level, OTHER))):
        if kind in counts or len(counts) < most:
            return kind
    return OTHER, OTHER


def _jump(found: Events, verdict: str, line: dict[str, Any]) -> None:
    found.verdicts[verdict] += 1
    if verdict != "accepted":
        reason = _NUMBER.sub("…", clean(line.get("reason") or "no reason is recorded"))
        known = len(found.reasons) < _REASONS or (verdict, reason) in found.reasons
        found.reasons[verdict, reason if known else OTHER] += 1
    step, loss = step_of(line.get("step")), number_of(line.get("loss_before"))
    if verdict == "refused" and step is not None and loss is not None and drawable(loss):
        found.refused.add(step, loss, found.verdicts[verdict])
    kept_keys = {key: value for key, value in line.items() if key not in {"time", "level", "event"}}
    found.jumps.add({"verdict": verdict, **_cleaned(kept_keys, _FIELDS)})


def _metrics(path: Path, damage: Counter[str]) -> Metrics:
    found = Metrics()
    own = {"val_loss": found.validation, "tokens_per_second": found.tokens}
    for line in objects(path, damage):
        step, phase = step_of(line.pop("step", None)), clean(line.pop("phase", ""), _NAME)
        if step is None:
            damage[path.name] += 1
            continue
        for key, written in line.items():
            value = number_of(written)
            if value is None:
                continue
            if key in own:
                own[key].add(step, phase, value)
            elif (name := named(key)) in found.others or len(found.others) < _METRICS:
                # Of one phase: 300 tracks of 17 phases would be half a GiB.
                found.others.setdefault(name, Track()).add(step, "", value)
    return found


def _checkpoints(root: Path) -> tuple[list[dict[str, Any]], int]:
    try:
        paths = [] if root.is_symlink() else checkpoints(root)
    except (OSError, CheckpointError):
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


def _cleaned(table: dict[str, Any], most: int = _SETTINGS) -> dict[str, Any]:
    """Return a copy of the table that is safe to print. Lists and inner tables become text.

    If there are more than `most` fields, the last field is the number of the others.
    """
    left_out = len(table) - most
    return {
        **{
            clean(key, _NAME * 2): scalar(_text(value) if isinstance(value, dict | list) else value)
            for key, value in islice(table.items(), most)
        },
        **({"fields left out": left_out} if left_out > 0 else {}),
    }


def _text(value: dict[str, Any] | list[Any]) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # TOML has dates and longer numbers than JSON
        return json.dumps(safe(value))
