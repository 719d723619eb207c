"""Settings and manifest of `optimizer-offload`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec

StrategyName = Literal["none", "cpu", "pinned", "compress", "drop"]


@attrs.frozen(kw_only=True)
class OptimizerOffloadConfig:
    """`[plugins.optimizer-offload]`."""

    strategy: StrategyName = field(
        "cpu",
        validator=in_(("none", "cpu", "pinned", "compress", "drop")),
        help="what becomes of the state: `cpu` and `pinned` keep it in host memory, `compress` as "
        "int8 on the device, `drop` forgets it, `none` leaves it",
    )
    async_restore: bool = field(
        default=True,
        help="bring it back beside forward and backward, not when the update waits for it; `cpu` "
        "and `pinned`",
    )
    lookahead: int = field(
        5,
        validator=and_(ge(0), le(10_000)),
        help="steps before the next update at which it begins to come back, in phases of several "
        "steps without updates",
    )
    discard_activations: bool = field(
        default=True, help="free what the last step has left behind when the state leaves"
    )


SPEC = PluginSpec(
    name="optimizer-offload",
    load="neaptide_plugins.optimizer_offload.plugin:OptimizerOffload",
    config=OptimizerOffloadConfig,
    summary="Frees the device of the optimizer's state in Predict: host memory, int8 or dropped.",
    claims={"optimizer.state"},
    after={"layer-streaming"},
    phases={"predict"},
    numerics="exact",
)
