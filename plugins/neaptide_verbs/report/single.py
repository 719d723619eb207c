"""The page of one run."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from neaptide_toolkit.pages.html import command, page, paragraph, section, table, tiles
from neaptide_toolkit.pages.text import counted, figure, in_unit

from . import facts
from .charts import (
    loss_chart,
    memory_charts,
    metric_chart,
    metric_range,
    norm_chart,
    seconds_chart,
    tokens_chart,
)

if TYPE_CHECKING:
    from .reading import RunFacts
    from .series import Track

_CHARTS = 36
_RATES = ("lr", "learning_rate")


def run_page(run: RunFacts) -> str:
    """Return the report of a run as one HTML document."""
    body = (_header(run), *_figures(run), *_records(run), _footer(run))
    return page(f"{run.name} - {run.status.kind} - Neaptide", body)


def _header(run: RunFacts) -> str:
    written = f", last written {run.written:%Y-%m-%d %H:%M:%S} UTC" if run.written else ""
    status = f'<span class="status {escape(run.status.kind)}">{escape(run.status.text)}</span>'
    return (
        f'<header><div class="title"><h1>{escape(run.name)}</h1>{status}</div>\n'
        f'<p class="path">{escape(facts.shown_path(run))}{written}</p>\n'
        f"{tiles(facts.key_figures(run))}\n{paragraph(facts.damage_text(run), 'alert')}</header>"
    )


def _figures(run: RunFacts) -> list[str]:
    unusual = run.steps.loss.unusual_count
    note = f"{counted(unusual, 'training loss', 'training losses')} not finite." if unusual else ""
    return [
        section(
            "Loss",
            loss_chart(run),
            paragraph(note, "alert"),
            table(facts.loss_columns(run), facts.loss_rows(run), caption="Training loss by phase"),
            norm_chart(run),
        ),
        section("Jumps", _jumps(run)),
        section("Memory", *memory_charts(run), _peaks(run), _memory(run)),
        section(
            "Time",
            seconds_chart(run),
            tokens_chart(run),
            table(facts.TIME_COLUMNS, facts.time_rows(run), caption="Time of a step by phase"),
        ),
        section("Metrics", *_metrics(run)),
    ]


def _jumps(run: RunFacts) -> str:
    verdicts = run.events.verdicts
    if not verdicts:
        return paragraph("No Predict step is recorded.")
    names = ("accepted", "refused", "declined")
    said = ", ".join(f"{verdicts[name]:,} {name}" for name in names)
    skipped = facts.skipped_share(run)
    share = f" Updates that needed no backward pass: {skipped}." if skipped else ""
    reasons = table(
        facts.REASON_COLUMNS,
        facts.reason_rows(run),
        caption="Why no jump was made; … stands for numbers, which the steps below have",
    )
    return (
        paragraph(f"{said}.{share} Speedup: {facts.NOT_MEASURED}.")
        + reasons
        + table(
            facts.JUMP_COLUMNS,
            facts.jump_rows(run),
            caption="Predict steps and the guard's verdicts",
            fold="Predict steps",
            left_out=run.events.jumps.left_out,
        )
    )


def _peaks(run: RunFacts) -> str:
    rows = [
        (tier, phase, in_unit(nbytes, "bytes"))
        for phase, tiers in facts.peak_bytes(run).items()
        for tier, nbytes in tiers.items()
    ]
    return table(("tier", "phase", "peak"), rows, caption="Peaks by phase")


def _memory(run: RunFacts) -> str:
    return table(
        facts.MEMORY_COLUMNS,
        facts.memory_rows(run),
        caption="Memory by tier, phase and moment",
        fold="rows by tier, phase and moment",
    )


def _metrics(run: RunFacts) -> list[str]:
    tracks = {name: track for name, track in run.metrics.others.items() if track.whole.count}
    changing = [name for name, track in tracks.items() if _changes(track)]
    changing.sort(key=lambda name: name.rpartition(".")[2] not in _RATES)
    drawn = changing[:_CHARTS]
    charts = "".join(metric_chart(name, tracks[name], run) for name in drawn)
    rest = [
        (name, track.whole.count, metric_range(track))
        for name, track in tracks.items()
        if name not in drawn
    ]
    return [
        f'<div class="many">{charts}</div>' if charts else "",
        table(("metric", "values", "range"), rest, caption="Metrics that do not change")
        if len(changing) <= _CHARTS
        else table(("metric", "values", "range"), rest, caption="More metrics", fold="metrics"),
    ]


def _changes(track: Track) -> bool:
    whole = track.whole
    return whole.high > whole.low


def _records(run: RunFacts) -> list[str]:
    counts = [
        (event or "-", level or "-", count)
        for (level, event), count in sorted(run.events.counts.items(), key=lambda item: -item[1])
    ]
    return [
        section(
            "Events",
            table(("event", "level", "count"), counts, caption="Events by name", fold="names"),
            table(
                ("time (UTC)", "level", "step", "event", "details"),
                facts.event_rows(run),
                caption="Events in order of time",
                fold="events",
                left_out=run.events.listed.left_out,
            ),
        ),
        section("Configuration", _config(run)),
        section(
            "Machine", table(("fact", "value"), list(run.machine.items()), caption="The machine")
        ),
        section("Checkpoints", _checkpoints(run)),
        section("Commands", _commands(run)),
    ]


def _config(run: RunFacts) -> str:
    header = ("setting", "value", "origin") if run.origins else ("setting", "value")
    rows = [
        (key, facts.setting(value), run.origins.get(key, "-"))[: len(header)]
        for key, value in run.config.items()
    ]
    return table(header, rows, caption="Effective configuration", fold="settings")


def _checkpoints(run: RunFacts) -> str:
    rows = [
        (c["name"], "-", "-", "damaged: " + c["problem"])
        if "problem" in c
        else (c["name"], figure(c["step"]), c["phase"] or "-", in_unit(c["bytes"], "bytes"))
        for c in run.checkpoints
    ]
    return table(
        ("checkpoint", "update", "phase", "size"),
        rows,
        caption="Checkpoints; neaptide ckpt verify checks every byte of them",
        fold="checkpoints",
        left_out=run.checkpoint_count - len(rows),
    )


def _commands(run: RunFacts) -> str:
    if not run.config:
        return paragraph("The run has no configuration file, so no command can repeat it.")
    onward = facts.onward(run)
    parts = [paragraph("To repeat the run:"), command(facts.again(run))]
    if onward:
        parts += [paragraph("To continue from its newest checkpoint:"), command(onward)]
    return "".join(parts)


def _footer(run: RunFacts) -> str:
    digest = run.summary.get("digest")
    said = f"Digest of the final state: {facts.setting(digest)}" if digest else ""
    return f"<footer>{paragraph(said)}</footer>" if said else ""
