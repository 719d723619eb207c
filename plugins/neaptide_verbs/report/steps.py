"""Read steps.csv row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.pages.text import drawable

from .files import named, number_of, rows, step_of
from .memory import MemoryTable, tiers
from .series import StepSeries, Stretches, Track

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from pathlib import Path


@attrs.define
class Steps:
    """The contents of steps.csv."""

    loss: Track = attrs.field(factory=Track)
    """Loss of each step: an update's training loss, or the loss that the guard measured after a
    jump."""
    seconds: Track = attrs.field(factory=Track)
    grad_norm: Track = attrs.field(factory=Track)
    jumped: StepSeries = attrs.field(factory=StepSeries)
    """Loss after each accepted jump."""
    memory: MemoryTable = attrs.field(factory=lambda: MemoryTable("steps.csv"))
    stretches: Stretches = attrs.field(factory=Stretches)
    first: int = 0
    last: int = 0
    updates: int = 0
    predicted: int = 0


@attrs.frozen
class Columns:
    """The index of each column in a row; None for a missing column."""

    step: int
    phase: int
    loss: int
    predicted: int | None
    seconds: int | None
    grad_norm: int | None
    tiers: dict[int, str]


def read_steps(path: Path, damage: Counter[str]) -> Steps:
    """Read steps.csv. The result is empty if the header is missing."""
    found = Steps()
    lines = rows(path, damage)
    columns = _columns(next(lines, []))
    if columns is None:
        for _ in lines:
            damage[path.name] += 1
        return found
    for cells in lines:
        if not _take(found, columns, cells, named(cells[columns.phase])):
            damage[path.name] += 1
    return found


def _columns(header: Sequence[str]) -> Columns | None:
    at = {name: number for number, name in enumerate(header)}
    if not {"step", "phase", "loss"} <= at.keys():
        return None
    return Columns(
        step=at["step"],
        phase=at["phase"],
        loss=at["loss"],
        predicted=at.get("was_predicted"),
        seconds=at.get("seconds"),
        grad_norm=at.get("grad_norm"),
        tiers=tiers(header),
    )


def _take(found: Steps, columns: Columns, cells: Sequence[str], phase: str) -> bool:
    """Add a row to `found`. Return whether the row was readable."""
    step, loss = step_of(cells[columns.step]), number_of(cells[columns.loss])
    if step is None or loss is None:
        return False
    found.first = min(found.first, step) if found.last else step
    found.last = max(found.last, step)
    found.stretches.add(step, phase)
    if columns.predicted is not None and cells[columns.predicted] == "true":
        found.predicted += 1
        if drawable(loss):
            found.jumped.add(step, loss, found.predicted)
    else:
        found.updates += 1
    found.loss.add(step, phase, loss)
    for number, track in ((columns.seconds, found.seconds), (columns.grad_norm, found.grad_norm)):
        value = None if number is None or not cells[number] else number_of(cells[number])
        if value is not None:
            track.add(step, phase, value)
    for number, tier in columns.tiers.items():
        value = number_of(cells[number]) if cells[number] else None
        if value is not None:
            found.memory.add(step, phase, "update", tier, value)
    return True
