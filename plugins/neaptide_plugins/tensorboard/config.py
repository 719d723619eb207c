"""Settings and manifest of `tensorboard`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, min_len, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class TensorboardConfig:
    """`[plugins.tensorboard]`."""

    log_dir: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="directory of the event files; by default `plugins/tensorboard/` of the run directory",
    )
    every: int = field(
        1, validator=ge(1), help="updates between two points of loss, norm, time and memory"
    )
    flush_seconds: float = field(
        5.0,
        validator=ge(0.0),
        help="longest time, in seconds, until a point is written to the file",
    )


SPEC = PluginSpec(
    name="tensorboard",
    load="neaptide_plugins.tensorboard.plugin:Tensorboard",
    config=TensorboardConfig,
    summary="Losses by phase, rates, memory, jumps and plugins' metrics as TensorBoard events.",
    converts={"deepspeed": "neaptide_plugins.tensorboard.deepspeed:convert"},
    observer=True,
    numerics="exact",
)
