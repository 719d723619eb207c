"""Settings and manifest of `predictor-extrapolate`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.predictors.settings import WindowSettings


@attrs.frozen(kw_only=True)
class PredictorExtrapolateConfig(WindowSettings):
    """`[plugins.predictor-extrapolate]`."""

    order: int = field(
        1,
        validator=in_((1, 2)),
        help="degree of the fitted polynomial: `1` is a line, `2` is a parabola",
    )
    samples: int = field(
        20,
        validator=ge(2),
        help="samples in a window; with order 1 and 2 samples, the line goes through both samples",
    )

    @samples.validator
    def _determined(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value <= self.order:
            msg = f"'samples' must be >= {self.order + 1} for order {self.order} (got {value})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="predictor-extrapolate",
    load="neaptide_plugins.predictor_extrapolate.plugin:PredictorExtrapolate",
    config=PredictorExtrapolateConfig,
    summary="Predicts updates by a line or a parabola fitted to a window of weights.",
    dry_run={"samples": 3, "sample_every": 1},
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
