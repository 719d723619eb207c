"""Manifest of `lion`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

import attrs

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import (
    FACTOR,
    Rounding,
    decays,
    rounding_field,
    rounding_seed_field,
)


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
    rounding: Rounding = rounding_field()
    seed: int = rounding_seed_field()


SPEC = PluginSpec(
    name="lion",
    load="neaptide_plugins.lion.plugin:LionPlugin",
    schemes={"optimizer:lion"},
    options={"optimizer:lion": LionOptions},
    summary="Lion: updates by the sign of a momentum, with half of AdamW's state.",
    numerics="changes-training",
)
