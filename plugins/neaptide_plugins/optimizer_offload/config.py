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
        help="where the state is stored in Predict: `cpu` and `pinned` in host memory, `compress` "
        "as int8 on the device; with `drop` the state is discarded, with `none` it is not evicted",
    )
    async_restore: bool = field(
        default=True,
        help="copy the state back during forward and backward instead of at the update; only used "
        "with `cpu` and `pinned`",
    )
    lookahead: int = field(
        5,
        validator=and_(ge(0), le(10_000)),
        help="the copy of the state back to the device starts this number of steps before the next "
        "update; only used in phases of several steps without updates",
    )
    discard_activations: bool = field(
        default=True,
        help="when the state is evicted, also free the memory of reference cycles and of the cache "
        "of torch's allocator",
    )


SPEC = PluginSpec(
    name="optimizer-offload",
    load="neaptide_plugins.optimizer_offload.plugin:OptimizerOffload",
    config=OptimizerOffloadConfig,
    summary="Evicts the optimizer's state in Predict: to host memory, to int8, or dropped.",
    claims={"optimizer.state"},
    after={"layer-streaming"},
    phases={"predict"},
    numerics="exact",
)
