"""The comparison of several runs as a table and as a page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.html import page, paragraph, section, table
from neaptide_toolkit.pages.svg import Series
from neaptide_toolkit.pages.text import aligned, bold, in_unit

from . import facts
from .charts import dotted, overlaid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .reading import RunFacts
    from .series import Track

_SAMENESS = "The runs have the same settings."
_CAUTION = (
    "Each run was timed on its own machine, beside other processes. "
    "These times do not measure a speedup."
)


def names_of(runs: Sequence[RunFacts]) -> list[str]:
    """Return a name for each run: its directory's name, or its path if two names are equal."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    paths = [facts.shown_path(run) for run in runs]
    if len(set(paths)) == len(paths):
        return paths
    return [f"{path} ({number})" for number, path in enumerate(paths, 1)]


def comparison_rows(runs: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """Return the key figures of all runs, one row per figure."""
    columns = [_column(run) for run in runs]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [(label, *(column.get(label, "-") for column in columns)) for label in labels]
    return rows + _peak_rows(runs)


def _column(run: RunFacts) -> dict[str, str]:
    figures = {name: f"{value} {more}".rstrip() for name, value, more in facts.key_figures(run)}
    return {"status": run.status.kind, **figures}


def _peak_rows(runs: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    peaks = [facts.peak_bytes(run) for run in runs]
    keys = dict.fromkeys(
        (tier, phase) for p in peaks for phase, tiers in p.items() for tier in tiers
    )
    return [
        (
            f"peak, {tier}, {phase}",
            *(in_unit(peak.get(phase, {}).get(tier), "bytes") for peak in peaks),
        )
        for tier, phase in keys
    ]


def difference_rows(runs: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """Return the settings that differ between runs. `-` stands for a missing setting."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    rows = (
        (key, *(facts.setting(run.config[key]) if key in run.config else "-" for run in runs))
        for key in keys
        # Tables are left out, because the rows of their settings show the difference.
        if not any(other.startswith(f"{key}.") for other in keys)
    )
    return [row for row in rows if len(set(row[1:])) > 1]


def comparison_summary(runs: Sequence[RunFacts], *, colour: bool) -> str:
    """Return the comparison as lines of text."""
    header = ("", *names_of(runs))
    differences = difference_rows(runs)
    parts = [
        aligned([header, *comparison_rows(runs)]),
        f"{bold('settings that differ', colour=colour)}\n{aligned([header, *differences])}"
        if differences
        else _SAMENESS,
        *(
            f"{name}: {text}"
            for name, run in zip(header[1:], runs, strict=True)
            if (text := facts.damage_text(run))
        ),
    ]
    return "\n\n".join(parts)


def comparison_page(runs: Sequence[RunFacts]) -> str:
    """Return the comparison as one HTML document."""
    names = names_of(runs)
    header = ("", *names)
    differences = difference_rows(runs)
    title = f"{len(runs)} runs"
    return page(
        f"{title} - Neaptide",
        (
            f'<header><div class="title"><h1>{title}</h1></div></header>',
            section(
                "Figures",
                table(header, comparison_rows(runs), caption="Key figures"),
                paragraph(_CAUTION),
            ),
            *_charts(names, runs),
            section(
                "Settings that differ",
                table(header, differences, caption="Settings that differ between runs")
                or paragraph(_SAMENESS),
            ),
            section(
                "Runs",
                table(
                    ("run", "path", "status"),
                    [
                        (name, facts.shown_path(run), run.status.text)
                        for name, run in zip(names, runs, strict=True)
                    ],
                    caption="Paths of the runs",
                ),
            ),
        ),
    )


def _charts(names: Sequence[str], runs: Sequence[RunFacts]) -> list[str]:
    losses = _lines(names, runs, lambda run: run.steps.loss)
    seconds = _lines(names, runs, lambda run: run.steps.seconds)
    memory = (
        overlaid(
            f"Memory: {tier}",
            _lines(names, runs, partial(_tier, tier=tier)),
            runs,
            kind="bytes",
            height=220,
        )
        for tier in _tiers(runs)
    )
    return [
        section(
            "Loss",
            overlaid("Training loss", losses, runs, height=320),
            overlaid("Validation loss", _dotted(names, runs), runs, height=240),
        ),
        section("Memory", *memory),
        section("Time", overlaid("Time of a step", seconds, runs, kind="seconds", height=220)),
    ]


def _tiers(runs: Sequence[RunFacts]) -> list[str]:
    return list(dict.fromkeys(tier for run in runs for t in run.memory for tier in t.tracks))


def _tier(run: RunFacts, tier: str) -> Track | None:
    return next((t.tracks[tier] for t in run.memory if tier in t.tracks), None)


def _lines(
    names: Sequence[str], runs: Sequence[RunFacts], chosen: Callable[[RunFacts], Track | None]
) -> list[Series]:
    return [
        Series(label=name, colour=number + 1, lines=track.lines())
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        if (track := chosen(run)) is not None
    ]


def _dotted(names: Sequence[str], runs: Sequence[RunFacts]) -> list[Series]:
    return [
        dotted(name, number + 1, run.metrics.validation)
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
    ]


def comparison_json(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    names = names_of(runs)
    return {
        "runs": [facts.as_json(run) for run in runs],
        "settings_that_differ": {
            key: dict(zip(names, values, strict=True)) for key, *values in difference_rows(runs)
        },
        "speedup": None,
    }
