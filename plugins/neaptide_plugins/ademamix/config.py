"""Manifest of `ademamix`, and the options of the optimizer it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import and_, ge, gt, le, lt, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


def _three_decays(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    if len(value) != 3 or not all(0.0 <= beta < 1.0 for beta in value):  # noqa: PLR2004 - the paper's
        msg = f"{attribute.name!r} must be three numbers in [0, 1) (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class AdEMAMixOptions:
    """`[optimizer.options]` of `ademamix`."""

    betas: tuple[float, float, float] = field(
        (0.9, 0.999, 0.9999),
        validator=_three_decays,
        help="decay of the fast average, of the second moment, and of the slow average",
    )
    alpha: float = field(
        5.0, validator=and_(ge(0.0), le(1e6)), help="weight of the slow average in an update"
    )
    warmup_steps: int | None = field(
        None,
        validator=optional(and_(ge(0), lt(2**31))),
        help="updates over which `alpha` and the slow decay rise; left out, `train.steps`",
    )
    eps: float = field(
        1e-8, validator=and_(gt(0.0), le(1.0)), help="added to the root of the second moment"
    )
    weight_decay: float = field(
        0.1, validator=and_(ge(0.0), le(1e6)), help="decoupled; times the rate"
    )


SPEC = PluginSpec(
    name="ademamix",
    load="neaptide_plugins.ademamix.plugin:AdEMAMixPlugin",
    schemes={"optimizer:ademamix"},
    options={"optimizer:ademamix": AdEMAMixOptions},
    summary="AdEMAMix: AdamW with a second, slow average of the gradients.",
    numerics="changes-training",
)
