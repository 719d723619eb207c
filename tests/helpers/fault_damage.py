"""Damage to the files of a checkpoint: flipped, cut, grown, swapped, deleted, copied, linked."""

from __future__ import annotations

import os
import shutil
from itertools import combinations
from typing import TYPE_CHECKING

from fault_run import FILES, NEWEST, OLDER, OLDEST
from fault_verdicts import auto, in_turn, newest, reported, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fault_verdicts import Fault

    Edit = Callable[[Path], object]
    Named = Iterator[tuple[str, Edit]]

FLIPS, CUTS = 20, 8
SAME = {"buffers.json", "config.json", "data.safetensors", "extra.json", "rng.json"}
"""Files that are equal in all checkpoints."""
ONLY_NEWEST = {"gradients.safetensors", "training.safetensors"}
"""Files that a checkpoint between two updates does not have."""


def changed(path: Path, edit: Callable[[bytes], bytes]) -> Edit:
    """Return an edit of the bytes of one file of a run."""

    def commit(run: Path) -> None:
        (run / path).write_bytes(edit((run / path).read_bytes()))

    return commit


def flipped(part: int, parts: int) -> Callable[[bytes], bytes]:
    """Return a function that flips one bit, `part / parts` into the data."""

    def edit(data: bytes) -> bytes:
        at = len(data) * part // parts
        return data[:at] + bytes([data[at] ^ 1 << part % 8]) + data[at + 1 :]

    return edit


def _cut(part: int, parts: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: len(data) * part // parts]


def _flips() -> Named:
    for name in FILES:
        for part in range(8 if name == "extra.json" else FLIPS):
            yield f"flip {part} of {name}", changed(NEWEST / name, flipped(part, FLIPS))


def _flips_of_older() -> Named:
    for name in sorted({*FILES} - ONLY_NEWEST):
        for part in (1, 12):
            both = [changed(folder / name, flipped(part, FLIPS)) for folder in (OLDER, NEWEST)]
            yield f"flip {part} of {name} in two", lambda run, both=both: [one(run) for one in both]


def _sizes() -> Named:
    edits: dict[str, Callable[[bytes], bytes]] = {
        **{f"cut to {part}/{CUTS}": _cut(part, CUTS) for part in range(CUTS)},
        "cut by a byte": lambda data: data[:-1],
        "grown": lambda data: data + b"\0",
        "zeroed": lambda data: bytes(len(data)),
    }
    for name in FILES:
        for what, edit in edits.items():
            yield f"{what}: {name}", changed(NEWEST / name, edit)


def _exchange(one: Path, other: Path) -> Edit:
    def commit(run: Path) -> None:
        (run / one).rename(run / "x")
        (run / other).rename(run / one)
        (run / "x").rename(run / other)

    return commit


def _copy(source: Path, target: Path) -> Edit:
    return lambda run: shutil.copy(run / source, run / target)


def _swaps() -> Named:
    for one, other in combinations(FILES, 2):
        yield f"{one} for {other}", _exchange(NEWEST / one, NEWEST / other)
    for name in sorted({*FILES} - SAME - ONLY_NEWEST):
        yield f"{name} of an older one", _copy(OLDER / name, NEWEST / name)
        yield f"{name} of the oldest", _copy(OLDEST / name, NEWEST / name)
        yield f"{name} exchanged with an older one", _exchange(OLDER / name, NEWEST / name)


def _numbers() -> Named:
    following = dict(zip(FILES, (*FILES[1:], FILES[0]), strict=True))
    for name in FILES:
        yield f"without {name}", lambda run, name=name: (run / NEWEST / name).unlink()
        yield f"{name} twice", _copy(NEWEST / name, NEWEST / f"copy-{name}")
        yield f"{name} twice, hidden", _copy(NEWEST / name, NEWEST / f".{name}")
        over = following[name]
        yield f"{name} over {over}", _copy(NEWEST / name, NEWEST / over)


def _made(kind: str, name: str) -> Edit:
    def commit(run: Path) -> None:
        target, mine = run / name, run.parent / "mine"
        if os.path.lexists(target):
            target.rename(run / "away")
        target.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "a link":
                target.symlink_to(mine / "file")
            case "a link to a folder":
                target.symlink_to(mine / "folder")
            case "a dangling link":
                target.symlink_to(mine / "nothing")
            case "a link to the right content":
                target.symlink_to(run / "away")
            case "a hard link":
                target.hardlink_to(mine / "file")
            case "a pipe":
                os.mkfifo(target)
            case _:
                target.mkdir()

    return commit


LINKS = ("a link", "a link to a folder", "a dangling link", "a hard link", "a pipe", "a folder")
RECORDS = ("steps.csv", "metrics.jsonl", "events.jsonl", "config.toml", "machine.json")
PLACES = (
    *(*RECORDS, "summary.json", ".lock", "report.html", "plugins/profiler", "plugins"),
    *(f"plugins/profiler/{name}" for name in ("memory.csv", "phases.csv", "table.txt")),
    *(f".{name}.tmp" for name in RECORDS),
    *("checkpoints/step-00000008", "checkpoints/.old-step-00000006"),
)


def _links_in_checkpoints() -> Named:
    for name in FILES:
        for kind in (*LINKS, "a link to the right content"):
            yield f"{kind} for {name}", _made(kind, str(NEWEST / name))


def _links_elsewhere() -> Named:
    for place in PLACES:
        for kind in LINKS:
            yield f"{kind} for {place}", _made(kind, place)


def _each(act: Callable[[Path], object], *folders: Path) -> Edit:
    return lambda run: [act(run / folder) for folder in folders]


def _emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _to(name: str, source: Path = NEWEST) -> Edit:
    return lambda run: (run / source).rename((run / source).with_name(name))


def _copied_to(name: str, source: Path = NEWEST) -> Edit:
    return lambda run: shutil.copytree(run / source, (run / source).with_name(name))


def _folders() -> Named:
    every = (OLDEST, OLDER, NEWEST)
    yield "newest deleted", _each(shutil.rmtree, NEWEST)
    yield "two deleted", _each(shutil.rmtree, OLDER, NEWEST)
    yield "all deleted", _each(shutil.rmtree, *every)
    yield "newest emptied", _each(_emptied, NEWEST)
    yield "two emptied", _each(_emptied, OLDER, NEWEST)
    yield "all emptied", _each(_emptied, *every)
    yield "two exchanged", _exchange(OLDER, NEWEST)
    yield "named as a later one", _to("step-00000008")
    yield "named as an earlier one", _to("step-00000003")
    yield "named otherwise", _to("step-6")
    yield "renamed aside", _to(".old-step-00000006")
    yield "an older one aside", _copied_to(".old-step-00000006", OLDER)
    yield "copied as a later one", _copied_to("step-00000008")
    yield "an older one copied as a later one", _copied_to("step-00000007", OLDER)
    yield "copied beside", _copied_to("copy")
    yield "no folder of checkpoints", lambda run: shutil.rmtree(run / "checkpoints")
    yield "an empty run", lambda run: [shutil.rmtree(run), run.mkdir()]
    yield "no run", shutil.rmtree


def damage() -> Iterator[Fault]:
    """Yield every fault of files."""
    for edits in (_flips(), _flips_of_older(), _sizes(), _swaps(), _numbers()):
        yield from in_turn(edits, auto, newest, verified)
    yield from in_turn(_links_in_checkpoints(), newest, auto)
    yield from in_turn(_links_elsewhere(), auto, auto, reported)
    yield from in_turn(_folders(), auto)
