"""Settings and manifest of `dynamics-mlp`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.forecasting.settings import ForecastSettings


@attrs.frozen(kw_only=True)
class DynamicsMlpConfig(ForecastSettings):
    """`[plugins.dynamics-mlp]`."""

    members: int = field(5, validator=ge(2), help="networks in the ensemble")
    hidden: int = field(32, validator=ge(1), help="hidden units of a network")
    lr: float = field(1e-3, validator=gt(0.0), help="learning rate of the networks")
    shrink: float = field(
        0.1,
        validator=ge(0.0),
        help="weight decay of the networks, as in AdamW; with more, forecasts stay closer to two "
        "lines fitted to the losses",
    )
    rounds: int = field(
        32, validator=ge(1), help="gradient steps of the networks after each 32 samples"
    )
    batch: int = field(64, validator=ge(1), help="observed forecasts in a gradient step")
    remembered: int = field(
        1024, validator=ge(1), help="newest observed forecasts from which the networks learn"
    )


SPEC = PluginSpec(
    name="dynamics-mlp",
    load="neaptide_plugins.dynamics_mlp.plugin:DynamicsMlp",
    config=DynamicsMlpConfig,
    summary="Forecasts the loss by an ensemble of small networks; where they disagree, the "
    "confidence is lower.",
    claims={"dynamics"},
    numerics="changes-training",
)
