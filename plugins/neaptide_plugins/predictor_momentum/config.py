"""Settings and manifest of `predictor-momentum`."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.predictors.settings import WindowSettings


@attrs.frozen(kw_only=True)
class PredictorMomentumConfig(WindowSettings):
    """`[plugins.predictor-momentum]`."""

    decay: float = field(
        0.9,
        validator=and_(ge(0.0), lt(1.0)),
        help="decay of the average of the differences between consecutive samples: each difference "
        "counts `decay` times as much as the difference after it; with `0` only the newest "
        "difference counts",
    )
    samples: int = field(20, validator=ge(2), help="samples in a window")


SPEC = PluginSpec(
    name="predictor-momentum",
    load="neaptide_plugins.predictor_momentum.plugin:PredictorMomentum",
    config=PredictorMomentumConfig,
    summary="Predicts updates from an average velocity of the weights over a window.",
    dry_run={"samples": 2, "sample_every": 1},
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
