"""The report as text for a terminal, aligned, and coloured on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.text import aligned, bold, counted, paint

from . import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .reading import RunFacts

_JUMPS = 10


def run_summary(run: RunFacts, *, colour: bool) -> str:
    """Return the summary of a run as lines of text."""
    said = paint(run.status.text, run.status.kind, colour=colour)
    parts = [
        f"{bold(run.name, colour=colour)}  {said}",
        aligned([(n, f"{value} {more}".rstrip()) for n, value, more in facts.key_figures(run)]),
        _titled("loss", facts.loss_columns(run), facts.loss_rows(run), colour=colour),
        _titled("time", facts.TIME_COLUMNS, facts.time_rows(run), colour=colour),
        _titled("memory", facts.MEMORY_COLUMNS, facts.memory_rows(run), colour=colour),
        _jumps(run, colour=colour),
        _titled("no jump", facts.REASON_COLUMNS, facts.reason_rows(run), colour=colour),
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
