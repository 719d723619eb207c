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
        3.0, validator=gt(0.0), help="standard deviations above its mean at which a loss is a spike"
    )
    gradient_multiplier: float = field(
        10.0, validator=gt(1.0), help="times its median at which a gradient norm is an explosion"
    )
    vanishing: float = field(
        0.01, validator=and_(gt(0.0)), help="share of its median below which a norm has vanished"
    )
    oscillation: float = field(
        0.9,
        validator=and_(gt(0.0), le(1.0)),
        help="share of the window's losses that turn back at which, growing, they oscillate",
    )
    window: int = field(
        64, validator=and_(ge(8), le(256)), help="losses and norms that are looked at"
    )
    recovery: Literal["log", "fallback", "rollback"] = field(
        "fallback",
        validator=in_(("log", "fallback", "rollback")),
        help="what to do: only log; keep to Full while it lasts; or also put back a snapshot",
    )
    shorten: float = field(
        0.5,
        validator=and_(gt(0.0), le(1.0)),
        help="what the horizon of a jump is multiplied by at level caution",
    )
    calm: int = field(
        20, validator=ge(1), help="updates without a finding before the level falls by one"
    )
    snapshot_every: int = field(
        50, validator=ge(1), help="updates between two snapshots, with recovery = 'rollback'"
    )


SPEC = PluginSpec(
    name="divergence-monitor",
    load="neaptide_plugins.divergence_monitor.plugin:DivergenceMonitor",
    config=DivergenceMonitorConfig,
    summary="Four levels from normal to critical; shortens jumps, keeps to Full, rolls back.",
    claims={"divergence"},
    needs={"grad_norm"},
    numerics="exact",
)
