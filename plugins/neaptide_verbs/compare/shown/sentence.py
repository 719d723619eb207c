"""The result of a comparison in one plain sentence: what was saved, and how sure that is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neaptide_verbs.compare.sides import BASELINE, CANDIDATE, WITH_JUMPS

from .text import headline, who_diverged

if TYPE_CHECKING:
    from collections.abc import Mapping

    Figures = Mapping[str, Any]


def sentence(found: Figures) -> str:
    """Return what the candidate saved at `train.steps`, for readers who read nothing else.

    A multiplier m (see `budget x`) saves the share 1 - 1/m. If the sides differ in more than
    jumps, a second sentence tells what jumps saved alone. If the baseline is not tuned, the text
    says so.
    """
    sides = found["sides"]
    alone = sides.get(WITH_JUMPS)
    only_jumps = len(sides) == 2 and sides[CANDIDATE]["predicts"] > sides[BASELINE]["predicts"]  # noqa: PLR2004 - the two sides
    said = [_said("Jumps" if only_jumps else "The candidate", sides[CANDIDATE])]
    if alone is not None:
        said.append(_said("Jumps alone", alone))
    if not found["baseline_is_tuned"]:
        said.append("The baseline is not tuned.")
    return " ".join(said)


def _said(who: str, side: Figures) -> str:
    judged = headline(side)
    passes, time = judged["multiplier"], judged["time_multiplier"]
    if passes["outside"] not in {None, "below", "above"}:
        return f"{who}: no saving can be stated, because {who_diverged(passes['outside'])}."
    if side["predicts"] and not judged["at"]["jumps"]:
        return f"{who}: not one jump was made on this task, so there is nothing to tell."
    if passes["outside"] == "below":
        least = f"{passes['least']:.2f}"
        return (
            f"{who} saved nothing on this task: the loss is worse than the baseline's with {least} "
            "times the passes."
        )
    if passes["outside"] == "above":
        text = f"{who} saved more than {_share(passes['most'])} % of backward passes on this task"
        return f"{text}{_more_time(time)}."
    return f"{_of_passes(who, passes)}{_of_time(time)}."


def _of_passes(who: str, worth: Figures) -> str:
    share = f"{_share(worth['mean'])} %"
    if worth["low"] is not None and worth["low"] <= 1.0 <= worth["high"]:
        text = (
            f"{who}: no saving of backward passes is shown on this task, for the interval holds 0"
        )
        return f"{text}: {share} ({_interval(worth)})"
    if worth["mean"] < 1.0:
        cost = f"{_percent(1.0 / worth['mean'] - 1.0)} %"
        return f"{who} cost {cost} more backward passes ({_interval(worth, -1.0)}) on this task"
    return f"{who} saved {share} of backward passes ({_interval(worth)}) on this task"


def _of_time(worth: Figures) -> str:
    if math.isnan(worth["mean"]):
        return "; the times cannot be compared"
    if worth["low"] is not None and worth["low"] <= 1.0 <= worth["high"]:
        return f"; in time no saving is shown: {_share(worth['mean'])} % ({_interval(worth)})"
    if worth["mean"] < 1.0:
        return f"; in time a loss of {_percent(1.0 / worth['mean'] - 1.0)} %"
    return f"; in time {_share(worth['mean'])} %"


def _more_time(worth: Figures) -> str:
    return "" if math.isnan(worth["most"]) else f"; in time more than {_share(worth['most'])} %"


def _interval(worth: Figures, sign: float = 1.0) -> str:
    """Return the interval of the saved share in percent; with `sign` -1 that of the lost share."""
    if worth["low"] is None:
        return "one seed, no interval"
    known = bool(worth["low"]), math.isfinite(worth["high"])
    low, high = worth["low"] or worth["least"], worth["high"] if known[1] else worth["most"]
    ends = [
        _end(sign * (1.0 - 1.0 / low), "" if known[0] else "less than " if sign > 0 else "over "),
        _end(sign * (1.0 - 1.0 / high), "" if known[1] else "more than " if sign > 0 else "under "),
    ]
    first, last = ends if sign > 0 else reversed(ends)
    return f"{first} to {last} %"


def _end(share: float, word: str) -> str:
    return f"{word}{_percent(share)}"


def _share(multiplier: float) -> str:
    return _percent(1.0 - 1.0 / multiplier)


def _percent(share: float) -> str:
    """Return a share in percent: whole, but with a decimal below 1 %."""
    percent = 100.0 * share
    text = f"{percent:.0f}" if abs(percent) >= 1.0 or not percent else f"{percent:.1f}"
    return text.removeprefix("-") if float(text) == 0.0 else text
