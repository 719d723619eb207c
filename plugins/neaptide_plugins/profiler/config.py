"""Settings and manifest of `profiler`."""

from __future__ import annotations

from typing import Any

import attrs
from attrs.validators import deep_iterable, ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec


def _window(_: Any, __: Any, value: tuple[int, ...]) -> None:
    if value and not (len(value) == 2 and 1 <= value[0] <= value[1]):  # noqa: PLR2004 - a pair
        msg = f"must be [first, last] with 1 <= first <= last, or empty (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class ProfilerConfig:
    """`[plugins.profiler]`."""

    every: int = field(1, validator=ge(1), help="updates between two samples")
    spike_mb: float = field(
        100.0,
        validator=gt(0.0),
        help="least rise in MB (10^6 bytes), from one step to the next, that is logged as a spike",
    )
    nvml: bool = field(
        default=True,
        help="read two values from the GPU's driver: the GPU's utilization, and the GPU memory "
        "that all processes use together",
    )
    csv: bool = field(default=True, help="write every sample to plugins/profiler/memory.csv")
    plot: bool = field(
        default=False, help="plot memory.csv as memory.png at the end; needs neaptide[plots]"
    )
    snapshot_at: tuple[int, ...] = field(
        (), validator=deep_iterable(ge(1)), help="updates after which to write a memory snapshot"
    )
    snapshot_on_spike: bool = field(default=False, help="write a memory snapshot at a spike")
    snapshot_history: bool = field(
        default=False,
        help="record CUDA allocations and their Python stacks from the start, for requested "
        "snapshots",
    )
    max_snapshots: int = field(
        5,
        validator=ge(0),
        help="largest number of snapshots per run, including requested snapshots",
    )
    trace: tuple[int, ...] = field(
        (), validator=_window, help="updates to trace for Perfetto, as `[first, last]`"
    )
    trace_ops: bool = field(
        default=False, help="also trace torch's operators and GPU kernels, by torch.profiler"
    )


SPEC = PluginSpec(
    name="profiler",
    load="neaptide_plugins.profiler.plugin:Profiler",
    config=ProfilerConfig,
    summary="Memory per step, phase and moment; spikes, snapshots, a plot, a trace for Perfetto.",
    observer=True,
    numerics="exact",
)
