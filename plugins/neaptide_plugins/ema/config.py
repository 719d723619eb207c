"""Settings and manifest of `ema`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, in_, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class EmaConfig:
    """`[plugins.ema]`."""

    decay: float = field(
        0.999, validator=and_(ge(0.0), lt(1.0)), help="factor of the old average at each update"
    )
    warmup: bool = field(
        default=True,
        help="limit the decay to (1 + t) / (10 + t) at update t, so that the initial weights lose "
        "their influence sooner",
    )
    tier: Literal["device", "host"] = field(
        "device", validator=in_(("device", "host")), help="where the average is stored"
    )


SPEC = PluginSpec(
    name="ema",
    load="neaptide_plugins.ema.plugin:Ema",
    config=EmaConfig,
    summary="Evaluates with an exponential moving average of the weights.",
    claims={"evaluation.weights"},
    numerics="exact",
)
