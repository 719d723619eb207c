"""Manifest of `adam8bit`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

import attrs

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import EPS, FACTOR, SEED, decays


@attrs.frozen(kw_only=True)
class Adam8bitOptions:
    """`[optimizer.options]` of `adam8bit`."""

    betas: tuple[float, float] = field(
        (0.9, 0.999),
        validator=decays,
        help="decay of the first and of the second moment",
    )
    eps: float = field(1e-8, validator=EPS, help="added to the square root of the second moment")
    weight_decay: float = field(
        1e-2, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    seed: int = field(
        0, validator=SEED, help="seed for the rounding of the state and of bfloat16 weights"
    )


SPEC = PluginSpec(
    name="adam8bit",
    load="neaptide_plugins.adam8bit.plugin:Adam8bitPlugin",
    schemes={"optimizer:adam8bit"},
    search_space=({"optimizer": {"name": "adam8bit"}},),
    options={"optimizer:adam8bit": Adam8bitOptions},
    summary="AdamW with both moments in 8 bits: 2 bytes of state per parameter instead of 8.",
    numerics="changes-training",
)
