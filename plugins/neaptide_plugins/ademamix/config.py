"""Manifest of `ademamix`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, lt, optional

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
class AdEMAMixOptions:
    """`[optimizer.options]` of `ademamix`."""

    betas: tuple[float, float, float] = field(
        (0.9, 0.999, 0.9999),
        validator=decays,
        help="decay of the fast average, of the second moment, and of the slow average",
    )
    alpha: float = field(5.0, validator=FACTOR, help="weight of the slow average in an update")
    warmup_steps: int | None = field(
        None,
        validator=optional(and_(ge(0), lt(2**31))),
        help="number of updates during which `alpha` and the decay of the slow average rise; if "
        "not set, `train.steps`",
    )
    eps: float = field(1e-8, validator=EPS, help="added to the square root of the second moment")
    weight_decay: float = field(
        0.1, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    rounding: Rounding = rounding_field()
    seed: int = rounding_seed_field()


SPEC = PluginSpec(
    name="ademamix",
    load="neaptide_plugins.ademamix.plugin:AdEMAMixPlugin",
    schemes={"optimizer:ademamix"},
    options={"optimizer:ademamix": AdEMAMixOptions},
    summary="AdEMAMix: AdamW with a second, slow average of the gradients.",
    numerics="changes-training",
)
