"""The figures of a run that all outputs share: key figures, tables and the JSON."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.pages.text import clean, counted, figure, in_unit

if TYPE_CHECKING:
    from .reading import RunFacts
    from .series import Track

NOT_MEASURED = "not measured"
_OVERFLOW = 700  # exp of more is no float
MEMORY_COLUMNS = ("tier", "phase", "moment", "samples", "mean", "max", "min", "source")
TIME_COLUMNS = ("phase", "steps", "per step", "min", "max", "steps/s")
LOSS_COLUMNS = ("phase", "steps", "mean", "min", "max")
PERPLEXITY = "perplexity of the mean"
REASON_COLUMNS = ("verdict", "steps", "reason")
JUMP_COLUMNS = (
    "step",
    "verdict",
    "horizon",
    "scale",
    "loss before",
    "loss after",
    "norm",
    "confidence",
    "time",
    "reason",
)


def key_figures(run: RunFacts) -> list[tuple[str, str, str]]:
    """Return the key figures. Each has a name, a value and a text, such as the value's step."""
    steps, verdicts, whole = run.steps, run.events.verdicts, run.steps.seconds.whole
    planned = run.config.get("train.steps")
    accepted = max(verdicts["accepted"], steps.predicted)
    tokens = run.metrics.tokens.whole.mean
    rate = f"{whole.count / whole.total:.3g}" if whole.total > 0 else "-"
    return [
        ("training loss", *_newest(steps.loss)),
        ("validation loss", *_newest(run.metrics.validation)),
        *_perplexities(run),
        ("updates", f"{steps.last:,}", "" if planned is None else f"of {figure(planned)}"),
        ("backward skipped", skipped_share(run) or "not known", ""),
        ("speedup", NOT_MEASURED, ""),
        ("jumps accepted", f"{accepted:,}", ""),
        ("jumps refused", f"{verdicts['refused']:,}", ""),
        ("time in steps", in_unit(whole.total, "seconds") if whole.count else "-", ""),
        ("steps per second", rate, ""),
        *([("tokens per second", rounded(tokens), "mean")] if tokens is not None else []),
        *([("gradient norm", *_newest(steps.grad_norm))] if steps.grad_norm.last else []),
        *_peaks(run),
    ]


def _newest(track: Track) -> tuple[str, str]:
    return (figure(track.last[1]), f"at {track.last[0]:,}") if track.last else ("-", "")


def rounded(rate: float) -> str:
    """Format a number of tokens per second: three digits, or all before the point."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"  # noqa: PLR2004 - three digits


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if a float is too small for it; NaN of NaN."""
    return math.inf if loss >= _OVERFLOW else math.exp(loss)


def _perplexities(run: RunFacts) -> list[tuple[str, str, str]]:
    """Return the newest perplexities; none if the loss is not known to be one per token."""
    tracks = {"perplexity": run.steps.loss, "validation perplexity": run.metrics.validation}
    return [
        (name, figure(perplexity(track.last[1])), f"at {track.last[0]:,}")
        for name, track in tracks.items()
        if run.events.per_token and track.last
    ]


def loss_columns(run: RunFacts) -> tuple[str, ...]:
    """Return the columns of the table of losses."""
    return (*LOSS_COLUMNS, PERPLEXITY) if run.events.per_token else LOSS_COLUMNS


def reason_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return the figures of REASON_COLUMNS, the most frequent reason first."""
    return [(verdict, n, reason) for (verdict, reason), n in run.events.reasons.most_common()]


def skipped_share(run: RunFacts) -> str:
    """Return the share of updates without a backward pass; empty if the run has no summary."""
    share = run.summary.get("backward_skipped")
    known = isinstance(share, int | float) and not isinstance(share, bool)
    return f"{share:.1%}" if known else ""


def _peaks(run: RunFacts) -> list[tuple[str, str, str]]:
    highest: dict[str, float] = {}
    for by_tier in peak_bytes(run).values():
        for tier, nbytes in by_tier.items():
            highest[tier] = max(highest.get(tier, 0), nbytes)
    return [(f"peak, {tier}", in_unit(nbytes, "bytes"), "") for tier, nbytes in highest.items()]


def peak_bytes(run: RunFacts) -> dict[str, dict[str, float]]:
    """Return the peak bytes by phase and tier.

    The peaks come from the summary; without a summary they come from the records.
    """
    from_summary = run.summary.get("peak_bytes")
    found: dict[str, dict[str, float]] = {}
    if isinstance(from_summary, dict):
        for phase, tiers in from_summary.items():
            if isinstance(tiers, dict):
                for name, nbytes in tiers.items():
                    if isinstance(nbytes, int | float) and not isinstance(nbytes, bool):
                        found.setdefault(phase, {})[name.removesuffix("_bytes")] = nbytes
        return found
    for table in run.memory[:1]:
        for (tier, phase, _), spread in table.groups.items():
            if spread.count:
                found.setdefault(phase, {})[tier] = spread.high
    return found


def shown_path(run: RunFacts) -> str:
    """Return the run's path as the user gave it, safe to print."""
    return clean(run.path, 1000)


def setting(value: Any) -> str:
    """Format a setting's value as a configuration file does."""
    if isinstance(value, bool):
        return str(value).lower()
    return clean(value) if value != "" else '""'


def loss_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return the figures of `loss_columns`, one row per phase."""
    return [
        (phase, f.count, f.mean, f.low, f.high, perplexity(f.mean or 0.0))[: len(loss_columns(run))]
        for phase, f in run.steps.loss.spreads.items()
        if f.count
    ]


def memory_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return the figures of MEMORY_COLUMNS, one row per source, tier, phase and moment."""
    return [
        (
            tier,
            phase,
            moment,
            f.count,
            in_unit(f.mean, "bytes"),
            in_unit(f.high, "bytes"),
            in_unit(f.low, "bytes"),
            table.source,
        )
        for table in run.memory
        for (tier, phase, moment), f in sorted(table.groups.items(), key=lambda item: item[0][0])
        if f.count
    ]


def time_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return the figures of TIME_COLUMNS, one row per phase."""
    return [
        (
            phase,
            f.count,
            in_unit(f.mean, "seconds"),
            in_unit(f.low, "seconds"),
            in_unit(f.high, "seconds"),
            f"{f.count / f.total:.3g}" if f.total > 0 else "-",
        )
        for phase, f in run.steps.seconds.spreads.items()
        if f.count
    ]


def jump_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return the figures of JUMP_COLUMNS, one row per Predict step."""
    keys = ("verdict", "horizon", "scale", "loss_before", "loss_after", "norm", "confidence")
    return [
        (
            jump.get("step"),
            *(jump.get(key) for key in keys),
            seconds_text(jump.get("seconds")),
            jump.get("reason") or "-",
        )
        for jump in run.events.jumps
    ]


def seconds_text(value: Any) -> str:
    """Format a recorded time."""
    return in_unit(value, "seconds") if isinstance(value, int | float) else "-"


def event_rows(run: RunFacts) -> list[tuple[Any, ...]]:
    """Return time, level, event and details of the listed events."""
    known = {"time", "level", "event", "step"}
    return [
        (
            str(event.get("time", "-"))[:19].replace("T", " "),
            event.get("level", "-"),
            event.get("step"),
            event.get("event", "-"),
            ", ".join(
                f"{key} {figure(value)}"
                for key, value in event.items()
                if key not in known and value not in (None, "")
            )
            or "-",
        )
        for event in run.events.listed
    ]


def again(run: RunFacts) -> str:
    """Return the command that repeats the run."""
    where = str(run.config.get("run.dir") or shown_path(run))
    config = _config_of(run)
    return f"neaptide run {config} --set {shlex.quote(f'run.dir={where}-again')}"


def onward(run: RunFacts) -> str:
    """Return the command that continues the run; empty if the run is finished or still running."""
    if run.status.kind in {"finished", "running"} or not run.checkpoint_count:
        return ""
    return f"neaptide run {_config_of(run)} --resume auto"


def _config_of(run: RunFacts) -> str:
    return shlex.quote(clean(run.path / "config.toml", 1000))


def damage_text(run: RunFacts) -> str:
    """Return a sentence on unreadable lines; empty if all files were readable."""
    parts = (f"{counted(count, 'line')} of {name}" for name, count in run.damage.items())
    text = ", ".join(parts)
    return f"Damaged and left out: {text}." if text else ""


def as_json(run: RunFacts) -> dict[str, Any]:
    """Return the facts of a run as JSON values."""
    steps, validation = run.steps, run.metrics.validation
    return {
        "run": run.name,
        "path": shown_path(run),
        "status": run.status.kind,
        "status_text": run.status.text,
        "steps": steps.last,
        "updates_recorded": steps.updates,
        "loss": steps.loss.facts(),
        "last_loss": steps.loss.last[1] if steps.loss.last else None,
        "not_finite": steps.loss.unusual_count,
        "validation": [list(point) for point in validation.points()],
        "last_validation": validation.last[1] if validation.last else None,
        "backward_skipped": run.summary.get("backward_skipped"),
        "speedup": None,
        "seconds": steps.seconds.facts(),
        "peak_bytes": peak_bytes(run),
        "memory": [
            {"source": t.source, "tier": tier, "phase": phase, "moment": moment, **f.facts()}
            for t in run.memory
            for (tier, phase, moment), f in t.groups.items()
        ],
        "perplexity": {name: value for name, value, _ in _perplexities(run)},
        "tokens_per_second": run.metrics.tokens.whole.facts(),
        "grad_norm": steps.grad_norm.whole.facts(),
        "jumps": {
            "counts": dict(run.events.verdicts),
            "reasons": [
                {"verdict": verdict, "count": count, "reason": reason}
                for verdict, count, reason in reason_rows(run)
            ],
            "listed": list(run.events.jumps),
        },
        "events": [
            {"level": level, "event": event, "count": count}
            for (level, event), count in run.events.counts.items()
        ],
        "metrics": {name: track.whole.facts() for name, track in run.metrics.others.items()},
        "config": run.config,
        "origins": run.origins,
        "machine": run.machine,
        "checkpoints": run.checkpoints,
        "damaged_lines": run.damage,
        "summary": run.summary,
    }
