"""Settings and manifest of `lr-schedule`."""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - the type of a setting is read at run time
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, instance_of, le, lt, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec

SHAPES = ("constant", "linear", "cosine", "wsd")
DECAY = 0.2
"""The share of the run in which `wsd` decays, if `decay` is not set."""
_NO_OPTIONS: Any = attrs.Factory(dict)


def is_shape(name: str) -> bool:
    """Return whether `name` is a schedule of this plugin, and not a class of torch."""
    return name in SHAPES


def _known(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not (is_shape(value) or (value.isidentifier() and value[0].isupper())):
        msg = (
            f"{attribute.name!r} must be {', '.join(SHAPES)}, or a class of "
            f"torch.optim.lr_scheduler (got {value!r})"
        )
        raise ValueError(msg)


def _updates(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if value >= 1 and value != int(value):
        msg = (
            f"{attribute.name!r} must be a whole number of updates, or a share of the run below 1 "
            f"(got {value})"
        )
        raise ValueError(msg)


def _only_with(*names: str) -> Any:
    """Return a validator that refuses any other value than the default, without these schedules."""

    def check(config: LrScheduleConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        default = {} if attribute.name == "options" else attribute.default
        fits = config.name in names if names else not is_shape(config.name)
        if value != default and not fits:
            who = " and ".join(names) or "classes of torch"
            msg = f"{attribute.name!r} is a setting of {who}, not of {config.name!r} (got {value})"
            raise ValueError(msg)

    return check


@attrs.frozen(kw_only=True)
class LrScheduleConfig:
    """`[plugins.lr-schedule]`."""

    name: str = field(
        "cosine",
        validator=and_(instance_of(str), _known),
        help="`cosine`, `linear` or `wsd` decay the rate, `constant` does not; or a class of "
        "`torch.optim.lr_scheduler`",
    )
    warmup: float = field(
        0.0,
        validator=and_(ge(0.0), lt(math.inf), _updates, _only_with(*SHAPES)),
        help="updates in which the rate rises from zero; a number below 1 is a share of "
        "`train.steps`",
    )
    floor: float = field(
        0.0,
        validator=and_(ge(0.0), le(1.0), _only_with("linear", "cosine", "wsd")),
        help="share of the peak rate that is left at the end",
    )
    decay: float | None = field(
        None,
        validator=and_(optional(and_(gt(0.0), le(1.0))), _only_with("wsd")),
        help=f"share of the run in which `wsd` decays, at its end; none: {DECAY}",
    )
    count_jumps: bool = field(
        default=True,
        validator=instance_of(bool),
        help="an accepted jump counts as the updates that it replaces",
    )
    options: Mapping[str, Any] = field(
        _NO_OPTIONS, validator=_only_with(), help="arguments of the class of torch"
    )


SPEC = PluginSpec(
    name="lr-schedule",
    load="neaptide_plugins.lr_schedule.plugin:LrSchedule",
    config=LrScheduleConfig,
    summary="Schedules of the learning rate: warmup, wsd, floors, and those of torch.",
    claims={"learning-rate"},
    dry_run={"warmup": 0.0},
    converts={"deepspeed": "neaptide_plugins.lr_schedule.deepspeed:convert"},
    numerics="changes-training",
)
