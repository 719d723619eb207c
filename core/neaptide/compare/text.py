"""The findings as lines for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neaptide.progress import duration
from neaptide.report.summary import aligned

from .sides import BASELINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def summary(found: Mapping[str, Any]) -> str:
    """Return tables of losses, multipliers and levels, and what they may be called."""
    kinds = [kind for kind in ("plain", "averaged") if _has(found, kind)]
    parts = [f"{_named(found)}\nseeds {_listed(found['seeds'])}{_tuning(found)}"]
    parts += [aligned(rows(found, kind)) for kind in kinds]
    parts.append("passes (and time) to the baseline's losses\n" + aligned(level_rows(found)))
    parts.append(verdict(found))
    return "\n\n".join(parts)


def rows(found: Mapping[str, Any], kind: str) -> list[tuple[str, ...]]:
    """Return a row for each side and budget, its header first."""
    title = "validation loss" if kind == "plain" else "of averaged weights"
    lines: list[tuple[str, ...]] = [
        (title, "passes", "mean", "spread", "budget x", "90 %", "time x", "90 %", "jumps", "time")
    ]
    for name, side in found["sides"].items():
        for at in side["budgets"]:
            figures = at[kind]
            if figures is None:
                continue
            jumps = f"{at['jumps']} ({at['refused']} refused)" if side["predicts"] else "-"
            lines.append(
                (
                    name,
                    f"{at['passes']:g}",
                    number(figures["mean_loss"]),
                    number(figures["spread"]),
                    *_worth(figures["multiplier"]),
                    *_worth(figures["time_multiplier"]),
                    jumps,
                    duration(at["seconds"]),
                )
            )
    return lines


def level_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each loss level, its header first."""
    names = list(found["sides"])
    lines: list[tuple[str, ...]] = [("loss", *names)]
    for level in found["levels"]:
        cells = []
        for name in names:
            needed = level["needed"][name]
            cells.append(
                "not reached"
                if needed["passes"] is None
                else f"{needed['passes']:.0f} ({duration(needed['seconds'])})"
            )
        lines.append((number(level["loss"]), *cells))
    return lines


def headline(side: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the figures a side is judged by: its longest budget inside the baseline's curve.

    Of the two evaluations the one with the smaller multiplier, so that what averaging alone would
    give nobody is not counted as a gain.
    """
    for at in reversed(side["budgets"]):
        kinds = [at[kind] for kind in ("plain", "averaged") if at[kind] is not None]
        means = [figures["multiplier"]["mean"] for figures in kinds]
        if means and all(math.isfinite(mean) for mean in means):
            return {"at": at, **kinds[means.index(min(means))]}
    return None


def verdict(found: Mapping[str, Any]) -> str:
    """Return a line for each side but the baseline: what it is worth, or why that is not known."""
    lines = []
    for name, side in found["sides"].items():
        if name == BASELINE:
            continue
        best = headline(side)
        if best is None:
            lines.append(f"{name}: no multiplier, its loss lies outside the baseline's curve")
            continue
        worth, time = best["multiplier"], best["time_multiplier"]
        word = "speedup" if found["baseline_is_tuned"] else "against an untuned baseline"
        lines.append(
            f"{name}: {word} {_with_interval(worth)} in backward passes, "
            f"{_with_interval(time)} in time"
        )
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Return a loss with four digits after the point."""
    return "-" if value is None else f"{value:.4f}"


def _with_interval(worth: Mapping[str, Any]) -> str:
    if worth["low"] is None:
        return f"{worth['mean']:.3f}x (one seed, no interval)"
    return f"{worth['mean']:.3f}x (90 %: {worth['low']:.3f} to {worth['high']:.3f})"


def _worth(worth: Mapping[str, Any]) -> tuple[str, str]:
    if not math.isfinite(worth["mean"]):
        return "-", "-"
    span = "-" if worth["low"] is None else f"{worth['low']:.3f}-{worth['high']:.3f}"
    return f"{worth['mean']:.3f}", span


def _named(found: Mapping[str, Any]) -> str:
    baseline = found["sides"][BASELINE]
    if found["baseline_is_tuned"]:
        return f"tuned baseline ({_listed(baseline['swept'])} swept)"
    if baseline["swept"]:
        return f"baseline not tuned (only {_listed(baseline['swept'])} swept)"
    return "baseline as configured, nothing swept: it may not be called tuned"


def _tuning(found: Mapping[str, Any]) -> str:
    return f", swept on {_listed(found['tuning_seeds'])}" if found["tuning_seeds"] else ""


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _has(found: Mapping[str, Any], kind: str) -> bool:
    return any(at[kind] is not None for side in found["sides"].values() for at in side["budgets"])
