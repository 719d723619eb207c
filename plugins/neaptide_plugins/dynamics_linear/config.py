"""Settings and manifest of `dynamics-linear`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.forecasting.settings import ForecastSettings


@attrs.frozen(kw_only=True)
class DynamicsLinearConfig(ForecastSettings):
    """`[plugins.dynamics-linear]`."""

    ridge: float = field(
        100.0,
        validator=gt(0.0),
        help="penalty on the regression's coefficients; a higher penalty keeps forecasts closer to "
        "two lines fitted to the losses; with a lower penalty the regression learns faster",
    )
    forgetting: float = field(
        4.0,
        validator=ge(0.0),
        help="sample k of n has the weight (k / n) to this power; with 0 all samples have equal "
        "weights",
    )


SPEC = PluginSpec(
    name="dynamics-linear",
    load="neaptide_plugins.dynamics_linear.plugin:DynamicsLinear",
    config=DynamicsLinearConfig,
    summary="Forecasts the loss by ridge regression; forecasts are used only while they are "
    "more accurate than the current loss.",
    claims={"dynamics"},
    numerics="changes-training",
)
