"""Manifest of `apollo`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import EPS, FACTOR, SEED, Rounding, decays, rounding_field
from neaptide_toolkit.sensitive import SENSITIVE_WEIGHTS

WHOLE = (*SENSITIVE_WEIGHTS, "*positions*", "fc.*", "score.*", "output.*", "*.A_log")
"""Name patterns of embeddings and output heads in common models."""


def _growth(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if value and not 1.0 <= value <= 1e6:  # noqa: PLR2004 - as the message says
        msg = f"{attribute.name!r} must be 0 or in [1, 1e6] (got {value})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class ApolloOptions:
    """`[optimizer.options]` of `apollo`."""

    rank: int = field(
        0,
        validator=and_(ge(0), le(1 << 16)),
        help="rows of a projection; 0 is a quarter of the smaller side of a matrix, at most 256",
    )
    scale_type: Literal["channel", "tensor"] = field(
        "channel",
        validator=in_(("channel", "tensor")),
        help="what has a scaling factor of its own: `channel`, each row or column along the larger "
        "side; `tensor`, the whole matrix",
    )
    alpha: float = field(
        1.0,
        validator=and_(gt(0.0), le(1e6)),
        help="factor of the updates of matrices; the paper has sqrt(128) for rank 1 with `tensor`",
    )
    update_proj_gap: int = field(
        200, validator=and_(ge(1), le(1 << 30)), help="updates after which a projection is redrawn"
    )
    gamma: float = field(
        1.01,
        validator=_growth,
        help="largest growth of the norm of a matrix's update from one update to the next; 0 is "
        "no limit",
    )
    betas: tuple[float, float] = field(
        (0.9, 0.999), validator=decays, help="decays of the first and second moment"
    )
    eps: float = field(1e-8, validator=EPS, help="added to the root of a second moment")
    weight_decay: float = field(
        0.0, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    adamw: tuple[str, ...] = field(
        WHOLE,
        help="name patterns of matrices that AdamW updates: embeddings and heads; AdamW also "
        "updates all parameters that are not matrices",
    )
    rounding: Rounding = rounding_field()
    seed: int = field(0, validator=SEED, help="seed of the projections and of stochastic rounding")


SPEC = PluginSpec(
    name="apollo",
    load="neaptide_plugins.apollo.plugin:ApolloPlugin",
    schemes={"optimizer:apollo"},
    options={"optimizer:apollo": ApolloOptions},
    summary="APOLLO: gradients scaled by row or column, with moments of a random projection.",
    numerics="changes-training",
)
