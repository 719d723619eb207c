"""Settings and manifest of `predictor-drift`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class PredictorDriftConfig:
    """`[plugins.predictor-drift]`."""

    window_fraction: float = field(
        1 / 3,
        validator=and_(gt(0.0), lt(1.0)),
        help="share of all updates so far that a window spans at its end",
    )
    min_window: int = field(100, validator=ge(4), help="updates in the shortest window")
    max_window: int = field(800, validator=ge(4), help="updates in the longest window")
    scale: float = field(
        0.5,
        validator=and_(gt(0.0), le(1.0)),
        help="share of the distance between the two halves' means that a jump goes",
    )
    sample_every: int = field(5, validator=ge(1), help="updates between two samples of the weights")
    tier: Literal["device", "host"] = field(
        "host", validator=in_(("device", "host")), help="where the accumulator is kept"
    )
    rounding: Literal["nearest", "stochastic"] = field(
        "nearest",
        validator=in_(("nearest", "stochastic")),
        help="how bfloat16 and float16 weights take a jump; stochastic keeps on average what is "
        "less than half of their last digit",
    )

    @max_window.validator
    def _longest_is_longer(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value < self.min_window:
            msg = f"'max_window' must be >= min_window {self.min_window} (got {value})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="predictor-drift",
    load="neaptide_plugins.predictor_drift.plugin:PredictorDrift",
    config=PredictorDriftConfig,
    summary="Predicts updates from the drift between the two halves of a long window.",
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
