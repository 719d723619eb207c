"""Manifest of `lion8bit`, and the options of the optimizer it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, ge, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


def _two_decays(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != 2 or not all(0.0 <= beta < 1.0 for beta in value):  # noqa: PLR2004 - as Lion has
        msg = f"{attribute.name!r} must be two numbers in [0, 1) (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Lion8bitOptions:
    """`[optimizer.options]` of `lion8bit`."""

    betas: tuple[float, float] = field(
        (0.9, 0.99),
        validator=_two_decays,
        help="share of the momentum in an update, and its decay",
    )
    weight_decay: float = field(
        0.0, validator=and_(ge(0.0), le(1e6)), help="decoupled; times the rate"
    )
    seed: int = field(0, validator=and_(ge(0), lt(2**32)), help="of the rounding of the state")


SPEC = PluginSpec(
    name="lion8bit",
    load="neaptide_plugins.lion8bit.plugin:Lion8bitPlugin",
    schemes={"optimizer:lion8bit"},
    options={"optimizer:lion8bit": Lion8bitOptions},
    summary="Lion with its momentum in 8 bits: 1 byte of state a parameter instead of 4.",
    numerics="changes-training",
)
