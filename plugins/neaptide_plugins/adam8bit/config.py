"""Manifest of `adam8bit`, and the options of the optimizer it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, ge, gt, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


def _two_decays(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != 2 or not all(0.0 <= beta < 1.0 for beta in value):  # noqa: PLR2004 - as Adam has
        msg = f"{attribute.name!r} must be two numbers in [0, 1) (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Adam8bitOptions:
    """`[optimizer.options]` of `adam8bit`."""

    betas: tuple[float, float] = field(
        (0.9, 0.999),
        validator=_two_decays,
        help="decay of the first and of the second moment",
    )
    eps: float = field(
        1e-8, validator=and_(gt(0.0), le(1.0)), help="added to the root of the second moment"
    )
    weight_decay: float = field(
        1e-2, validator=and_(ge(0.0), le(1e6)), help="decoupled; times the rate"
    )
    seed: int = field(0, validator=and_(ge(0), lt(2**32)), help="of the rounding of the state")


SPEC = PluginSpec(
    name="adam8bit",
    load="neaptide_plugins.adam8bit.plugin:Adam8bitPlugin",
    schemes={"optimizer:adam8bit"},
    options={"optimizer:adam8bit": Adam8bitOptions},
    summary="AdamW with both moments in 8 bits: 2 bytes of state a parameter instead of 8.",
    numerics="changes-training",
)
