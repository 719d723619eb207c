"""Settings and manifest of `trackio`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, matches_re, min_len, optional

from neaptide import PluginSpec, field


@attrs.frozen(kw_only=True)
class TrackioConfig:
    """`[plugins.trackio]`."""

    project: str = field(
        "neaptide",
        validator=matches_re(r"[\w-][\w .-]*"),
        help="project of Trackio: letters, digits, spaces, `.`, `_` and `-`",
    )
    name: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="first part of the run's name, before a random suffix; by default the name of the run "
        "directory",
    )
    group: str | None = field(None, validator=optional(min_len(1)), help="group of runs")
    space_id: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="Space of Hugging Face to log to; by default `TRACKIO_SPACE_ID`, else this machine",
    )
    system_metrics: bool = field(
        True, help="let Trackio record the load of the processor and of the accelerator, too"
    )
    every: int = field(
        1, validator=ge(1), help="updates between two points of loss, norm, time and memory"
    )


SPEC = PluginSpec(
    name="trackio",
    load="neaptide_trackio.plugin:TrackioPlugin",
    config=TrackioConfig,
    summary="Losses by phase, rates, memory, jumps, plugins' metrics and settings in Trackio.",
    observer=True,
    numerics="exact",
)
