"""Manifest of `adafactor`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, gt, le

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import FACTOR, Rounding, rounding_field, rounding_seed_field

if TYPE_CHECKING:
    from collections.abc import Sequence


def _small(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != 2 or not all(1e-37 <= each <= 1.0 for each in value):  # noqa: PLR2004 - a pair
        msg = f"{attribute.name!r} must be two numbers in [1e-37, 1] (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class AdafactorOptions:
    """`[optimizer.options]` of `adafactor`."""

    decay_rate: float = field(
        0.8,
        validator=and_(gt(0.0), le(1.0)),
        help="update t keeps the share 1 - t ** -decay_rate of the second moment",
    )
    clip_threshold: float = field(
        1.0,
        validator=and_(gt(0.0), le(1e6)),
        help="largest root mean square of a weight's update before the learning rate",
    )
    eps: tuple[float, float] = field(
        (1e-30, 1e-3),
        validator=_small,
        help="first: added to squared gradients; second: least root mean square of a weight that "
        "`scale_parameter` uses",
    )
    relative_step: bool = field(
        default=True,
        help="the learning rate of update t is at most 1 / sqrt(t); false: it is `optimizer.lr`",
    )
    scale_parameter: bool = field(
        default=True,
        help="multiply the learning rate of a weight by the weight's root mean square",
    )
    weight_decay: float = field(
        0.0,
        validator=FACTOR,
        help="decoupled weight decay, multiplied by `optimizer.lr`",
    )
    rounding: Rounding = rounding_field()
    seed: int = rounding_seed_field()


SPEC = PluginSpec(
    name="adafactor",
    load="neaptide_plugins.adafactor.plugin:AdafactorPlugin",
    schemes={"optimizer:adafactor"},
    options={"optimizer:adafactor": AdafactorOptions},
    summary="Adafactor: the state of a matrix is one row and one column.",
    numerics="changes-training",
)
