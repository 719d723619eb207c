"""Settings and manifest of `best-checkpoint`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, in_, instance_of, min_len

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class BestCheckpointConfig:
    """`[plugins.best-checkpoint]`."""

    metric: str = field(
        "val_loss",
        validator=and_(instance_of(str), min_len(1)),
        help="`val_loss`, or a metric that another plugin measures at evaluations, such as "
        "`accuracy`",
    )
    mode: Literal["min", "max"] = field(
        "min",
        validator=in_(("min", "max")),
        help="`min`: lower values are better; `max`: higher values are",
    )
    patience: int = field(
        0,
        validator=ge(0),
        help="the run ends after so many evaluations in a row without a better value; 0: it does "
        "not",
    )


SPEC = PluginSpec(
    name="best-checkpoint",
    load="neaptide_plugins.best_checkpoint.plugin:BestCheckpoint",
    config=BestCheckpointConfig,
    summary="Keeps a copy of the best checkpoint; ends a run that no longer gets better.",
    numerics="exact",
)
