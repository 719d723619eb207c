"""Manifest of `adam-mini`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

import attrs

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import (
    EPS,
    FACTOR,
    Rounding,
    decays,
    rounding_field,
    rounding_seed_field,
)


@attrs.frozen(kw_only=True)
class AdamMiniOptions:
    """`[optimizer.options]` of `adam-mini`."""

    betas: tuple[float, float] = field(
        (0.9, 0.999),
        validator=decays,
        help="decays of the mean of gradients and of the second moments",
    )
    eps: float = field(1e-8, validator=EPS, help="added to the root of a second moment")
    weight_decay: float = field(
        0.0, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    rounding: Rounding = rounding_field()
    seed: int = rounding_seed_field()


SPEC = PluginSpec(
    name="adam-mini",
    load="neaptide_plugins.adam_mini.plugin:AdamMiniPlugin",
    schemes={"optimizer:adam-mini"},
    options={"optimizer:adam-mini": AdamMiniOptions},
    summary="Adam-mini: AdamW with one second moment per row, with half of AdamW's state.",
    numerics="changes-training",
)
