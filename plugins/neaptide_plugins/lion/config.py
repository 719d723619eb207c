"""Manifest of `lion`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import in_

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import FACTOR, SEED, decays


@attrs.frozen(kw_only=True)
class LionOptions:
    """`[optimizer.options]` of `lion`."""

    betas: tuple[float, float] = field(
        (0.9, 0.99),
        validator=decays,
        help="first: share of the momentum in an update; second: decay of the momentum",
    )
    weight_decay: float = field(
        0.0, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    rounding: Literal["stochastic", "nearest"] = field(
        "stochastic",
        validator=in_(("stochastic", "nearest")),
        help="rounding of bfloat16 and float16 weights; `nearest` loses changes below half of the "
        "last digit, `stochastic` keeps them on average",
    )
    seed: int = field(0, validator=SEED, help="seed of stochastic rounding")


SPEC = PluginSpec(
    name="lion",
    load="neaptide_plugins.lion.plugin:LionPlugin",
    schemes={"optimizer:lion"},
    options={"optimizer:lion": LionOptions},
    summary="Lion: updates by the sign of a momentum, with half of AdamW's state.",
    numerics="changes-training",
)
