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
        (20, 50, 200), help="updates ahead that are forecast, rising; between them is interpolated"
    )
    every: int = field(5, validator=ge(1), help="updates between two samples to learn from")
    around: int = field(
        12, validator=ge(0), help="losses on either side of a future one that its mean is taken of"
    )
    smoothing: float = field(
        0.92,
        validator=and_(ge(0.0), lt(1.0)),
        help="decay of the exponential average that is the loss now",
    )
    ridge: float = field(
        100.0,
        validator=gt(0.0),
        help="how strongly the regression is held to the fitted curve; less: it learns sooner",
    )
    forgetting: float = field(
        4.0,
        validator=ge(0.0),
        help="weight of the past is its share of the run to this power; 0: nothing is forgotten",
    )
    least: int = field(
        10, validator=ge(1), help="scored forecasts before one at this horizon is given"
    )

    @horizons.validator
    def _horizons_rise(
        self, _attribute: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
    ) -> None:
        if not value or value[0] < 1 or sorted(set(value)) != list(value):
            msg = f"'horizons' must be at least one, from 1, in rising order (got {list(value)})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="dynamics-linear",
    load="neaptide_plugins.dynamics_linear.plugin:DynamicsLinear",
    config=DynamicsLinearConfig,
    summary="Forecasts the loss by ridge regression, and says nothing while it is no better than "
    "the loss now.",
    claims={"dynamics"},
    numerics="changes-training",
)
