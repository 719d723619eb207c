"""Settings and manifest of `predictor-dmd`."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.predictors.settings import State, WindowSettings


@attrs.frozen(kw_only=True)
class PredictorDmdConfig(WindowSettings):
    """`[plugins.predictor-dmd]`."""

    snapshots: int = field(
        8, validator=ge(3), help="samples in a window; each is a copy of all trained weights"
    )
    rank: int = field(3, validator=ge(1), help="largest number of modes; at most `snapshots - 2`")
    damping: float = field(
        1.0,
        validator=and_(gt(0.0), le(1.0)),
        help="largest modulus of an eigenvalue; larger eigenvalues are scaled down to it; with 1 "
        "no mode grows",
    )
    state: State = field(
        "bfloat16",
        validator=in_(("float32", "bfloat16", "int8")),
        help="dtype of a stored snapshot; in bfloat16 and int8 the difference from the first "
        "snapshot is stored",
    )

    @rank.validator
    def _determined(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value > self.snapshots - 2:
            msg = (
                f"'rank' must be <= {self.snapshots - 2} with {self.snapshots} snapshots "
                f"(got {value})"
            )
            raise ValueError(msg)


SPEC = PluginSpec(
    name="predictor-dmd",
    load="neaptide_plugins.predictor_dmd.plugin:PredictorDmd",
    config=PredictorDmdConfig,
    summary="Predicts updates by dynamic mode decomposition of a window of snapshots.",
    dry_run={"sample_every": 1},
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
