"""The report in a terminal: aligned, coloured only where that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.text import counted, figure

from . import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .reading import RunFacts

_COLOURS = {
    "finished": "32",
    "running": "34",
    "closed": "32",
    "stopped": "33",
    "interrupted": "33",
    "failed": "31",
    "diverged": "31",
    "warmup": "33",
    "full": "34",
    "predict": "35",
    "correct": "32",
}
_JUMPS = 10


def run_summary(run: RunFacts, *, colour: bool) -> str:
    """Return the summary of a run as lines of text."""
    said = paint(run.status.text, run.status.kind, colour=colour)
    parts = [
        f"{bold(run.name, colour=colour)}  {said}",
        aligned([(n, f"{value} {more}".rstrip()) for n, value, more in facts.key_figures(run)]),
        _titled("loss", facts.LOSS_COLUMNS, facts.loss_rows(run), colour=colour),
        _titled("time", facts.TIME_COLUMNS, facts.time_rows(run), colour=colour),
        _titled("memory", facts.MEMORY_COLUMNS, facts.memory_rows(run), colour=colour),
        _jumps(run, colour=colour),
        _events(run),
        facts.damage_text(run),
    ]
    return "\n\n".join(part for part in parts if part)


def _jumps(run: RunFacts, *, colour: bool) -> str:
    rows = facts.jump_rows(run)
    text = _titled("jumps", facts.JUMP_COLUMNS, rows[-_JUMPS:], colour=colour)
    before = run.events.jumps.count - min(len(rows), _JUMPS)
    return f"{text}\n({before:,} before these)" if before else text


def _events(run: RunFacts) -> str:
    worse = [
        f"{event} ({level}, {count:,} x)"
        for (level, event), count in run.events.counts.items()
        if level != "info"
    ]
    total = sum(run.events.counts.values())
    if not total:
        return ""
    return f"{counted(total, 'event')}" + (f"; {', '.join(worse[:8])}" if worse else "")


def _titled(
    title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], *, colour: bool
) -> str:
    if not rows:
        return ""
    return f"{bold(title, colour=colour)}\n{aligned([header, *rows], colour=colour)}"


def aligned(rows: Sequence[Sequence[Any]], *, colour: bool = False) -> str:
    """Return rows in columns, numbers to the right; phases are coloured where asked for."""
    cells = [[c if isinstance(c, str) else figure(c) for c in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(c[:1].isdigit() or c[:1] == "-" for c in column[1:]) for column in columns]
    right[0] = False
    lines = []
    for row in cells:
        padded = [
            paint(cell, cell, colour=colour) + " " * (width - len(cell))
            if not to_right
            else cell.rjust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def bold(text: str, *, colour: bool) -> str:
    """Return text in bold where colours are wanted."""
    return f"\x1b[1m{text}\x1b[0m" if colour else text


def paint(text: str, kind: str, *, colour: bool) -> str:
    """Return text in the colour of a phase or status where colours are wanted."""
    code = _COLOURS.get(kind)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
