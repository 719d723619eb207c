"""Formats the results of predict.py: a summary for its JSON file, and Markdown tables.

An idea is a configuration that is compared with a baseline. All compared configurations are called
sides. A multiplier compares a side with the baseline at equal loss. For example, 1.1 means that the
baseline needs 1.1 times the side's backward passes (or the side's time).
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Entry = Mapping[str, Any]

JUMP, STACK = "drift", "stack"
"""The two ideas of the summary: a jump (predicted update) alone, and a whole stack of plugins."""


def tasks(comparisons: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return, for each task, the multipliers of the ideas `JUMP` and `STACK`."""
    names = list(dict.fromkeys(entry["name"] for entry in comparisons))
    found = []
    for name in names:
        jump = _of(comparisons, name, JUMP)
        stack = _of(comparisons, name, STACK)
        if jump is None and stack is None:
            continue
        known = jump or stack
        assert known is not None, "one of them was measured"
        seeds = known["seeds"]
        listed = ",".join(map(str, seeds))
        command = f"python bench/predict.py --ideas {JUMP},{STACK} --tasks {name} --seeds {listed}"
        figures = {**_figures("jump", jump), **_figures("stack", stack)}
        found.append({"name": name, "seeds": seeds, "command": command, **figures})
    return found


def _of(comparisons: Sequence[Entry], name: str, idea: str) -> Entry | None:
    held = [
        entry
        for entry in comparisons
        if (entry["name"], entry["idea"]) == (name, idea)
        and entry["baseline_is_tuned"]
        and "--set" not in entry["command"]
    ]
    return max(held, key=lambda entry: len(entry["seeds"]), default=None)


def _figures(kind: str, entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {f"{kind}_multiplier_mean": None}
    worth = entry["worth"]["candidate"]
    outside = worth["multiplier"]["outside"]
    return {
        f"{kind}_multiplier_mean": None if outside else worth["multiplier"]["mean"],
        f"{kind}_outside": outside,
        f"{kind}_multiplier_interval": [worth["multiplier"]["low"], worth["multiplier"]["high"]],
        f"{kind}_multiplier_per_seed": worth["multiplier"]["per_seed"],
        f"{kind}_time_multiplier_mean": worth["time_multiplier"]["mean"],
        f"{kind}_time_multiplier_interval": [
            worth["time_multiplier"]["low"],
            worth["time_multiplier"]["high"],
        ],
        f"{kind}_seeds": entry["seeds"],
        f"{kind}_settings": {
            side: {"files": list(entry["files"].get(side, ())), "tuned": values["chosen"]}
            for side, values in entry["sides"].items()
        },
        f"{kind}_command": entry["command"],
    }


def markdown(comparisons: Sequence[Entry]) -> str:
    """Return tables with a row per idea and side, and a column per task.

    The tables show multipliers in backward passes, multipliers in time, losses, and counts of
    jumps. The multipliers are computed from the losses.
    """
    names = list(dict.fromkeys(entry["name"] for entry in comparisons))
    tables = [
        _table("passes x", comparisons, names, lambda entry, side: _worth(entry, side, "")),
        _table("time x", comparisons, names, lambda entry, side: _worth(entry, side, "time_")),
        _table("loss", comparisons, names, _lost, baseline=True),
        _table("jumps (refused)", comparisons, names, _jumps),
    ]
    return "\n".join(tables)


def _table(
    title: str,
    comparisons: Sequence[Entry],
    names: Sequence[str],
    cell: Callable[[Entry, str], str],
    *,
    baseline: bool = False,
) -> str:
    lines = [_row([title, "seeds", *names]), _row(["---"] * (2 + len(names)))]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for entry in comparisons:
        for side in entry["sides"]:
            if side != "baseline" or baseline:
                named = _named(entry) if side == "candidate" else f"{_named(entry)}: {side}"
                row = rows.setdefault((named, _span(entry["seeds"])), {})
                row[entry["name"]] = cell(entry, side)
    lines += [
        _row([named, seeds, *(row.get(name, "") for name in names)])
        for (named, seeds), row in rows.items()
    ]
    return "\n".join(lines) + "\n"


def _named(entry: Entry) -> str:
    """Return the idea's name, and the settings that apply to all sides."""
    sets = [word for flag, word in pairwise(shlex.split(entry["command"])) if flag == "--set"]
    return " ".join([entry["idea"], *sets])


def _worth(entry: Entry, side: str, unit: str) -> str:
    worth = entry["worth"][side][f"{unit}multiplier"]
    if worth["outside"] is not None:
        ends = {"below": f"<{worth['least']:.2f}", "above": f">{worth['most']:.2f}"}
        return ends.get(worth["outside"], worth["outside"])
    if isinstance(worth["mean"], str):  # JSON stores infinity and nan as strings
        return "-"
    if worth["low"] is None:
        return f"{worth['mean']:.3f}"
    low = f"{worth['low']:.3f}" if worth["low"] else f"<{worth['least']:.2f}"
    high = f"{worth['high']:.3f}" if worth["high"] != "inf" else f">{worth['most']:.2f}"
    mean = f"{worth['mean']:.3f}"
    return f"{f'**{mean}**' if worth['low'] > 1.0 else mean} ({low} to {high})"


def _lost(entry: Entry, side: str) -> str:
    worth = entry["worth"][side]
    at = _at(entry, side)
    like = entry["worth"]["candidate"] if side == "baseline" else worth
    mean, spread = (at[like["evaluation"]][key] for key in ("mean_loss", "spread"))
    if isinstance(mean, str):
        return mean
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"


def _jumps(entry: Entry, side: str) -> str:
    at = _at(entry, side)
    return f"{at['jumps']} ({at['refused']})"


def _at(entry: Entry, side: str) -> Entry:
    fraction = entry["worth"][side]["fraction"]
    found: Entry = next(at for at in entry["sides"][side]["budgets"] if at["fraction"] == fraction)
    return found


def _span(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 1
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
