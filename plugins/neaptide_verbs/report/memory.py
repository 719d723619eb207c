"""The memory of a run by tier, phase and moment, read from all files that follow a convention.

A tier is a kind of memory, such as device or host. A moment tells when in a step the memory was
read, such as `backward`. A plugin's file follows the convention if it is
`plugins/<name>/<file>.csv` and has columns `step`, `phase`, `moment` and one or more columns named
`<tier>_bytes`.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.pages.text import clean

from .files import MOST_READ, named, number_of, rows, step_of
from .series import OTHER, Spread, Track

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SUFFIX = "_bytes"
_KEYS = ("step", "phase", "moment")
_FILES, _GROUPS, _TIERS = 32, 400, 32


@attrs.define
class MemoryTable:
    """The contents of one file of memory readings."""

    source: str
    tracks: dict[str, Track] = attrs.field(factory=dict)
    """Bytes over steps, by tier."""
    groups: dict[tuple[str, str, str], Spread] = attrs.field(factory=dict)
    """Statistics of the readings by tier, phase and moment."""

    def add(self, step: int, phase: str, moment: str, tier: str, value: float) -> None:
        """Add a reading."""
        key = (tier, phase, moment)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= _GROUPS:
                key = (tier, OTHER, OTHER)
            group = self.groups.setdefault(key, Spread())
        track = self.tracks.get(tier)
        if track is None:
            track = self.tracks.setdefault(tier, Track())
        track.add(step, phase, value)
        if abs(value) < 1e18:  # noqa: PLR2004 - an exabyte: larger values are damaged
            group.add(value)


def memory_tables(folders: Iterable[Path], damage: Counter[str]) -> list[MemoryTable]:
    """Read the files that follow the convention in the plugins' folders.

    The files that would make more than 32 tracks, or more than a GiB to read, are left out; each
    counts as a damaged line.
    """
    paths = [path for folder in folders for path in sorted(folder.glob("*.csv"))][:_FILES]
    tables: list[MemoryTable] = []
    size = 0
    for path in paths:
        with suppress(OSError):  # deleted since
            size += path.lstat().st_size
        if size > MOST_READ or sum(len(table.tracks) for table in tables) >= _TIERS:
            damage[path.name] += 1
        elif (table := _read(path, damage)) is not None:
            tables.append(table)
    return tables


def tiers(header: Sequence[str]) -> dict[int, str]:
    """Return the tiers that a header names, by column number."""
    columns = {number: named(column) for number, column in enumerate(header)}
    found = {
        number: column.removesuffix(SUFFIX)
        for number, column in columns.items()
        if column.endswith(SUFFIX) and column != SUFFIX
    }
    return dict(islice(found.items(), _TIERS))


def _read(path: Path, damage: Counter[str]) -> MemoryTable | None:
    lines = rows(path, damage)
    header = next(lines, [])
    columns = tiers(header)
    if not columns or not set(_KEYS) <= set(header):
        damage.pop(path.name, None)  # this is another kind of file, not a damaged one
        if not "".join(header).isprintable():
            damage[path.name] += 1  # not a table
        return None
    step_at, phase_at, moment_at = map(header.index, _KEYS)
    table = MemoryTable(clean("/".join(path.parts[-3:])))
    for cells in lines:
        step = step_of(cells[step_at])
        if step is None:
            damage[path.name] += 1
            continue
        phase, moment = named(cells[phase_at]), named(cells[moment_at])
        for number, tier in columns.items():
            if cells[number]:
                value = number_of(cells[number])
                if value is None:
                    damage[path.name] += 1
                else:
                    table.add(step, phase, moment, tier, value)
    return table if table.tracks else None
