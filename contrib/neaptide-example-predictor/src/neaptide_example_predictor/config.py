"""The settings and the manifest. This module imports no torch."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, lt

from neaptide import PluginSpec, field


@attrs.frozen(kw_only=True)
class ExamplePredictorConfig:
    """The table `[plugins.example-predictor]`."""

    decay: float = field(
        0.98, validator=and_(gt(0.0), lt(1.0)), help="share of the running mean kept at each update"
    )
    horizon: int = field(5, validator=ge(1), help="largest number of updates that a jump replaces")
    min_updates: int = field(
        20, validator=ge(2), help="updates before the first proposal, and between two proposals"
    )


SPEC = PluginSpec(
    name="example-predictor",
    load="neaptide_example_predictor.plugin:ExamplePredictor",
    config=ExamplePredictorConfig,
    summary="Continues the running mean of the recent updates.",
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
