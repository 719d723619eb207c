"""What predict.py has measured, as the committed file sums it up and as tables of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Entry = Mapping[str, Any]

JUMP, STACK = "drift", "stack"
"""The ideas whose figures stand for a jump alone and for a whole stack."""


def tasks(comparisons: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return for each task what the jump alone and the stack are worth, on the reported seeds."""
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
    """Return a row for each idea on each task and side."""
    header = (
        *("idea", "task", "seeds", "side", "loss", "budget x", "90 %"),
        *("time x", "90 %", "jumps (refused)"),
    )
    lines = [_row(header), _row(["---"] * len(header))]
    for entry in comparisons:
        for side, values in entry["sides"].items():
            lines += [_row(cells) for cells in _cells(entry, side, values)]
    return "\n".join(lines) + "\n"


def _cells(entry: Entry, side: str, values: Entry) -> list[list[str]]:
    worth = entry["worth"][side]
    at = next(at for at in values["budgets"] if at["fraction"] == worth["fraction"])
    kind = at[entry["worth"]["candidate" if side == "baseline" else side]["evaluation"]]
    shown = [f"{entry['idea']}", entry["name"], _span(entry["seeds"]), side]
    shown.append(_loss(kind["mean_loss"], kind["spread"]))
    if side == "baseline":
        return [[*shown, "1", "", "1", "", ""]]
    jumps = f"{at['jumps']} ({at['refused']})"
    return [[*shown, *_worth(worth["multiplier"]), *_worth(worth["time_multiplier"]), jumps]]


def _worth(worth: Mapping[str, Any]) -> list[str]:
    if worth["outside"] is not None:
        ends = {"below": f"<{worth['least']:.2f}", "above": f">{worth['most']:.2f}"}
        return [ends.get(worth["outside"], worth["outside"]), ""]
    if worth["low"] is None:
        return [f"{worth['mean']:.3f}", ""]
    low = f"{worth['low']:.3f}" if worth["low"] else f"<{worth['least']:.2f}"
    # JSON has no infinity: it is a word there.
    high = f">{worth['most']:.2f}" if float(worth["high"]) > worth["most"] else None
    return [f"{worth['mean']:.3f}", f"{low}-{high or format(worth['high'], '.3f')}"]


def _loss(mean: float | str, spread: float | None) -> str:
    if isinstance(mean, str):
        return mean
    return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"


def _span(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 1
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
