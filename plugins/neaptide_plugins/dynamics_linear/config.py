"""Settings and manifest of `dynamics-linear`."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class DynamicsLinearConfig:
    """`[plugins.dynamics-linear]`."""

    horizons: tuple[int, ...] = field(
        (20, 50, 200),
        help="forecast distances in updates, in rising order; values between them are interpolated",
    )
    every: int = field(5, validator=ge(1), help="updates between two training samples")
    around: int = field(
        12,
        validator=ge(0),
        help="a forecast predicts the mean loss over several updates: from this many updates "
        "before the horizon to this many after it",
    )
    smoothing: float = field(
        0.92,
        validator=and_(ge(0.0), lt(1.0)),
        help="decay of the exponential average that serves as the current loss",
    )
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
    least: int = field(
        10,
        validator=ge(1),
        help="forecasts of a horizon are used once this many of them have been compared with the "
        "observed losses",
    )

    @horizons.validator
    def _horizons_rise(
        self, _attribute: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
    ) -> None:
        if not value or value[0] < 1 or sorted(set(value)) != list(value):
            msg = f"'horizons' must be integers >= 1 in rising order (got {list(value)})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="dynamics-linear",
    load="neaptide_plugins.dynamics_linear.plugin:DynamicsLinear",
    config=DynamicsLinearConfig,
    summary="Forecasts the loss by ridge regression; forecasts are used only while they are "
    "more accurate than the current loss.",
    claims={"dynamics"},
    numerics="changes-training",
)
