"""Settings and manifest of `divergence-monitor`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class DivergenceMonitorConfig:
    """`[plugins.divergence-monitor]`."""

    loss_sigma: float = field(
        3.0,
        validator=gt(0.0),
        help="a loss is a spike if it is more than this many standard deviations above the mean",
    )
    gradient_multiplier: float = field(
        10.0,
        validator=gt(1.0),
        help="a gradient norm has exploded if it is more than this many times the median",
    )
    vanishing: float = field(
        0.01,
        validator=and_(gt(0.0)),
        help="a gradient norm has vanished if it is less than this share of the median",
    )
    oscillation: float = field(
        0.9,
        validator=and_(gt(0.0), le(1.0)),
        help="losses oscillate if this share of their changes reverses direction and the changes "
        "grow",
    )
    window: int = field(
        64,
        validator=and_(ge(8), le(256)),
        help="number of newest losses and gradient norms that are checked",
    )
    recovery: Literal["log", "fallback", "rollback"] = field(
        "fallback",
        validator=in_(("log", "fallback", "rollback")),
        help="`log`: only log; `fallback`: no jumps at level warning or higher; `rollback`: "
        "also restore a snapshot at level critical",
    )
    shorten: float = field(
        0.5,
        validator=and_(gt(0.0), le(1.0)),
        help="at level caution, the horizon of a jump is multiplied by this",
    )
    calm: int = field(
        20,
        validator=ge(1),
        help="after this many updates without a finding the level falls by one",
    )
    snapshot_every: int = field(
        50, validator=ge(1), help='updates between two snapshots, with `recovery = "rollback"`'
    )


SPEC = PluginSpec(
    name="divergence-monitor",
    load="neaptide_plugins.divergence_monitor.plugin:DivergenceMonitor",
    config=DivergenceMonitorConfig,
    summary="Detects divergence in four levels; shortens jumps, stops them, or rolls back.",
    claims={"divergence"},
    needs={"grad_norm"},
    numerics="exact",
)
