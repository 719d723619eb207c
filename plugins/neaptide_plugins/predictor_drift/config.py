"""Settings and manifest of `predictor-drift`."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.predictors.settings import WindowSettings


@attrs.frozen(kw_only=True)
class PredictorDriftConfig(WindowSettings):
    """`[plugins.predictor-drift]`."""

    window_fraction: float = field(
        1 / 3,
        validator=and_(gt(0.0), lt(1.0)),
        help="length of a window, as a share of all updates from the start of the run to the end "
        "of the window",
    )
    min_window: int = field(100, validator=ge(4), help="updates in the shortest window")
    max_window: int = field(800, validator=ge(4), help="updates in the longest window")
    scale: float = field(
        0.5,
        validator=and_(gt(0.0), le(1.0)),
        help="length of a jump, as a share of the distance between the means of the two halves",
    )

    @max_window.validator
    def _longest_is_longer(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value < self.min_window:
            msg = f"'max_window' must be >= min_window {self.min_window} (got {value})"
            raise ValueError(msg)
        if value < 2 * self.sample_every:
            msg = (
                f"'max_window' must be >= {2 * self.sample_every}, two samples {self.sample_every} "
                f"updates apart (got {value})"
            )
            raise ValueError(msg)


SPEC = PluginSpec(
    name="predictor-drift",
    load="neaptide_plugins.predictor_drift.plugin:PredictorDrift",
    config=PredictorDriftConfig,
    summary="Predicts updates from the drift between the two halves of a long window.",
    version=2,
    dry_run={"min_window": 4, "max_window": 4, "sample_every": 1},
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
