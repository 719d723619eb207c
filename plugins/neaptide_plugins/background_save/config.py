"""Settings and manifest of `background-save`."""

from __future__ import annotations

import math

import attrs
from attrs.validators import and_, gt, instance_of, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class BackgroundSaveConfig:
    """`[plugins.background-save]`."""

    buffer_gib: float = field(
        1.0,
        validator=and_(instance_of((int, float)), gt(0), lt(math.inf)),
        help="GiB of RAM for what is copied and not yet written; a save waits while it is full",
    )


SPEC = PluginSpec(
    name="background-save",
    load="neaptide_plugins.background_save.plugin:BackgroundSave",
    config=BackgroundSaveConfig,
    summary="Writes a run's checkpoints in a thread while training goes on.",
    # It copies a checkpoint as soon as it is saved.
    conflicts={"best-checkpoint"},
    numerics="exact",
)
