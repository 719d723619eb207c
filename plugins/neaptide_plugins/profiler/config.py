"""Settings and manifest of `profiler`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class ProfilerConfig:
    """`[plugins.profiler]`."""

    every: int = field(1, validator=ge(1), help="updates between two samples")
    spike_mb: float = field(
        100.0,
        validator=gt(0.0),
        help="rise in MB (10^6 bytes) from one sample of a moment to the next that is an event",
    )
    nvml: bool = field(
        default=True, help="ask the driver for the memory used on the GPU, by all processes"
    )
    csv: bool = field(default=True, help="write every sample to plugins/profiler/memory.csv")


SPEC = PluginSpec(
    name="profiler",
    load="neaptide_plugins.profiler.plugin:Profiler",
    config=ProfilerConfig,
    summary="Memory per step, phase and moment: torch's allocator, RSS, NVML; spikes as events.",
    observer=True,
    numerics="exact",
)
