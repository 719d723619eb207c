"""Settings and manifest of `residual-correction`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class ResidualCorrectionConfig:
    """`[plugins.residual-correction]`."""

    observe: int = field(
        10,
        validator=ge(1),
        help="first updates of a Correct phase that are compared with the forecast of the jump "
        "before it; at most `phases.correct.steps`",
    )
    entries: int = field(10, validator=ge(1), help="residuals that are stored; the newest ones")
    neighbours: int = field(
        10,
        validator=ge(1),
        help="a jump is corrected by at most this many residuals: those of the most similar states "
        "of the run",
    )
    decay: float = field(
        0.95,
        validator=and_(gt(0.0), le(1.0)),
        help="the weight of a residual is multiplied by this for each newer residual",
    )
    limit: float = field(
        0.2,
        validator=and_(gt(0.0), le(1.0)),
        help="largest norm of a correction, as a share of the norm of the jump",
    )
    tier: Literal["host", "disk"] = field(
        "host",
        validator=in_(("host", "disk")),
        help="where residuals are stored: in RAM, or in files of the run directory",
    )


SPEC = PluginSpec(
    name="residual-correction",
    load="neaptide_plugins.residual_correction.plugin:ResidualCorrection",
    config=ResidualCorrectionConfig,
    summary="Corrects each jump by how earlier jumps in similar states of the run erred.",
    claims={"correction"},
    numerics="changes-training",
)
