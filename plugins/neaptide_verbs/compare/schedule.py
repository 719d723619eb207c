"""The learning-rate schedule of a side: other warmups and decays, and its length in a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEDULE = "lr-schedule"
"""The plugin whose settings are tuned. A side without it has a constant rate."""
_CONSTANT = {"name": "constant", "warmup": 0, "count_jumps": False}
_DECAYS = ("linear", "cosine")
_SHAPES = ("constant", *_DECAYS, "wsd")


def has_shape(values: Mapping[str, Any]) -> bool:
    """Return whether the schedule has a warmup; a class of torch has options of its own."""
    return _schedule(values)["name"] in _SHAPES


def other_warmups(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return changes to half and to twice the warmup, or from none to a twentieth of the run."""
    schedule, steps = _schedule(values), values["train"]["steps"]
    if not has_shape(values):
        return []
    now = _warmup(schedule, steps)
    decay = round((schedule.get("decay") or 0.2) * steps) if schedule["name"] == "wsd" else 0
    counts = {now // 2, min(max(1, 2 * now, steps // 20), steps - decay)}
    return [_changed(values, warmup=count) for count in sorted(counts - {now})]


def other_decays(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return changes to a linear and to a cosine decay, except the present one."""
    if not has_shape(values):
        return []
    now = _schedule(values)["name"]
    unset = {"decay": None} if now == "wsd" else {}
    return [_changed(values, name=name, **unset) for name in _DECAYS if name != now]


def of_a_share(values: Mapping[str, Any], fraction: float) -> dict[str, Any]:
    """Return the changes for `fraction` of the run: a warmup in updates has as many fewer."""
    warmup = _schedule(values).get("warmup", 0)
    return _changed(values, warmup=round(warmup * fraction)) if warmup >= 1 else {}


def _schedule(values: Mapping[str, Any]) -> Mapping[str, Any]:
    schedule: Mapping[str, Any] = values["plugins"].get(SCHEDULE, _CONSTANT)
    return schedule


def _warmup(schedule: Mapping[str, Any], steps: int) -> int:
    warmup = schedule["warmup"]
    return round(warmup * steps) if warmup < 1 else int(warmup)


def _changed(values: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    base = {} if SCHEDULE in values["plugins"] else _CONSTANT
    return {"plugins": {SCHEDULE: {**base, **changes}}}
