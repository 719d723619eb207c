"""The findings of a comparison as lines of text for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neaptide.config import tables
from neaptide.io.units import duration
from neaptide_toolkit.pages.text import aligned
from neaptide_verbs.compare.sides import BASELINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SMALL = 0.1


def summary(found: Mapping[str, Any]) -> str:
    """Return the findings as text: tables of losses, multipliers and passes, then the verdicts."""
    kinds = [kind for kind in ("plain", "averaged") if _has(found, kind)]
    parts = [f"{_named(found)}\nseeds {_listed(found['seeds'])}{_tuning(found)}"]
    parts += [aligned(rows(found, kind)) for kind in kinds]
    parts.append("passes (and time) to the baseline's losses\n" + aligned(level_rows(found)))
    if chosen := choices(found):
        parts.append("\n".join(chosen))
    parts.append(verdict(found))
    return "\n\n".join(parts)


def choices(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each side with its tuned settings."""
    return [
        f"{name}: tuned to "
        + ", ".join(f"{'.'.join(path)} = {tables.at(side['chosen'], path)!r}" for path in paths)
        for name, side in found["sides"].items()
        if (paths := [tuple(map(str, path)) for path in tables.leaves(side["chosen"])])
    ]


def rows(found: Mapping[str, Any], kind: str) -> list[tuple[str, ...]]:
    """Return the header and a row for each side and budget."""
    title = "validation loss" if kind == "plain" else "of averaged weights"
    lines: list[tuple[str, ...]] = [
        (title, "passes", "mean", "spread", "budget x", "90 %", "time x", "90 %", "jumps", "time")
    ]
    for name, side in found["sides"].items():
        for at in side["budgets"]:
            figures = at[kind]
            if figures is None:
                continue
            # The baseline's own multipliers follow from their definition, so they are not shown.
            worth = (
                ("-",) * 4
                if name == BASELINE
                else (*_worth(figures["multiplier"]), *_worth(figures["time_multiplier"]))
            )
            jumps = f"{at['jumps']} ({at['refused']} refused)" if side["predicts"] else "-"
            lines.append(
                (
                    name,
                    f"{at['passes']:g}",
                    number(figures["mean_loss"]),
                    number(figures["spread"]),
                    *worth,
                    jumps,
                    duration(at["seconds"]),
                )
            )
    return lines


def level_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the header and a row for each mean loss of the baseline."""
    names = list(found["sides"])
    lines: list[tuple[str, ...]] = [("loss", *names)]
    for level in found["levels"]:
        cells = []
        for name in names:
            needed = level["needed"][name]
            most = "<" if needed["at_most"] else ""
            cells.append(
                "not reached"
                if needed["passes"] is None
                else f"{most}{needed['passes']:.0f} ({most}{duration(needed['seconds'])})"
            )
        lines.append((number(level["loss"]), *cells))
    return lines


def headline(side: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures that decide the verdict on a side, at the configured budget.

    There are two evaluations, of the final weights and of their average. The figures come from the
    evaluation with the smaller multiplier, so that the side does not gain from averaging. `kind`
    names this evaluation. `at` has the figures of both evaluations at that budget.
    """
    at = min(side["budgets"], key=lambda at: abs(math.log(at["fraction"])))
    kinds = [kind for kind in ("plain", "averaged") if at[kind] is not None]
    kind = min(kinds, key=lambda kind: _rank(at[kind]["multiplier"]))
    return {"at": at, "kind": kind, **at[kind]}


def verdict(found: Mapping[str, Any]) -> str:
    """Return a line for each side except the baseline.

    The line states the side's multiplier, or the reason why there is no multiplier.
    """
    word = "speedup" if found["baseline_is_tuned"] else "against an untuned baseline"
    return "\n".join(
        f"{name}: {_said(headline(side), word)}{_jumped(side)}"
        for name, side in found["sides"].items()
        if name != BASELINE
    )


def _rank(worth: Mapping[str, Any]) -> float:
    unknown = {"below": 0.0, "above": math.inf}
    return worth["mean"] if worth["outside"] is None else unknown.get(worth["outside"], -math.inf)


def _said(judged: Mapping[str, Any], word: str) -> str:
    worth, time = judged["multiplier"], judged["time_multiplier"]
    if worth["outside"] == "below":
        return f"no gain: worse than the baseline with {worth['least']:.2f} times its passes"
    if worth["outside"] == "above":
        text = f"{word} of more than {worth['most']:.2f}x in backward passes"
        if not math.isnan(time["most"]):
            text += f", {time['most']:.2f}x in time"
        return f"{text}: better than the baseline's longest run"
    if worth["outside"] is not None:
        who = who_diverged(worth["outside"])
        return f"no multiplier, for {who} with at least one seed; try a lower learning rate"
    text = f"{word} {_with_interval(worth)} in backward passes"
    if not math.isnan(time["mean"]):
        text += f", {_with_interval(time)} in time"
    return text + _meaning(worth)


def who_diverged(outside: str) -> str:
    """Return which side diverged, in words; `outside` is the field of a multiplier."""
    return "the baseline diverged" if outside.startswith(BASELINE) else "it diverged"


def _meaning(worth: Mapping[str, Any]) -> str:
    if worth["low"] is None or worth["low"] > 1.0:
        return ""
    return "; no gain is shown" if worth["high"] >= 1.0 else "; a loss"


def _jumped(side: Mapping[str, Any]) -> str:
    return (
        "; not one jump was made" if side["predicts"] and not headline(side)["at"]["jumps"] else ""
    )


def number(value: float | None) -> str:
    """Return a loss as text with four decimals.

    A small loss has four significant digits instead.
    """
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0.0 or abs(value) >= _SMALL else f"{value:.4g}"


def _with_interval(worth: Mapping[str, Any]) -> str:
    if worth["low"] is None:
        return f"{worth['mean']:.3f}x (one seed, no interval)"
    return f"{worth['mean']:.3f}x (90 %: {_low(worth)} to {_high(worth)})"


def _worth(worth: Mapping[str, Any]) -> tuple[str, str]:
    """Return the mean and the interval of a multiplier, for a table.

    `<` and `>` mark a value outside the baseline's curve.
    """
    if worth["outside"] not in {None, "below", "above"}:
        return "diverged" if worth["outside"] == "diverged" else "-", "-"
    if math.isnan(worth["least"]):
        return "-", "-"
    ends = {"below": f"<{worth['least']:.2f}", "above": f">{worth['most']:.2f}"}
    mean = ends.get(worth["outside"] or "", f"{worth['mean']:.3f}")
    return mean, "-" if worth["low"] is None else f"{_low(worth)} to {_high(worth)}"


def _low(worth: Mapping[str, Any]) -> str:
    return f"{worth['low']:.3f}" if worth["low"] else f"<{worth['least']:.2f}"


def _high(worth: Mapping[str, Any]) -> str:
    return f"{worth['high']:.3f}" if math.isfinite(worth["high"]) else f">{worth['most']:.2f}"


def _named(found: Mapping[str, Any]) -> str:
    baseline = found["sides"][BASELINE]
    if found["baseline_is_tuned"]:
        kept = "" if baseline["initialisation_swept"] else "; initialisation as configured"
        return f"tuned baseline ({_listed(baseline['swept'])} swept{kept})"
    if baseline["swept"]:
        return f"baseline not tuned (only {_listed(baseline['swept'])} swept)"
    return "baseline as configured, nothing swept: it may not be called tuned"


def _tuning(found: Mapping[str, Any]) -> str:
    return f", swept on {_listed(found['tuning_seeds'])}" if found["tuning_seeds"] else ""


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _has(found: Mapping[str, Any], kind: str) -> bool:
    return any(at[kind] is not None for side in found["sides"].values() for at in side["budgets"])
