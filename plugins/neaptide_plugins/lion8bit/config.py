"""Manifest of `lion8bit`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

import attrs

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import FACTOR, SEED, decays


@attrs.frozen(kw_only=True)
class Lion8bitOptions:
    """`[optimizer.options]` of `lion8bit`."""

    betas: tuple[float, float] = field(
        (0.9, 0.99),
        validator=decays,
        help="first: share of the momentum in an update; second: decay of the momentum",
    )
    weight_decay: float = field(
        0.0, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    seed: int = field(
        0, validator=SEED, help="seed for the rounding of the state and of bfloat16 weights"
    )


SPEC = PluginSpec(
    name="lion8bit",
    load="neaptide_plugins.lion8bit.plugin:Lion8bitPlugin",
    schemes={"optimizer:lion8bit"},
    options={"optimizer:lion8bit": Lion8bitOptions},
    summary="Lion with its momentum in 8 bits: 1 byte of state per parameter instead of 4.",
    numerics="changes-training",
)
