"""Settings and manifest of `wandb`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge, matches_re, min_len, optional

from neaptide import PluginSpec, field

Mode = Literal["online", "offline", "disabled"]
_NAME = matches_re(r"[^/\\#?%:]+")
"""What W&B takes as the name of a project and as an id."""


@attrs.frozen(kw_only=True)
class WandbConfig:
    """`[plugins.wandb]`."""

    project: str = field(
        "neaptide", validator=_NAME, help="project of W&B, without any of `/\\\\#?%:`"
    )
    entity: str | None = field(
        None, validator=optional(min_len(1)), help="user or team; by default that of the API key"
    )
    name: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="name of the run; by default the name of the run directory",
    )
    group: str | None = field(None, validator=optional(min_len(1)), help="group of runs")
    tags: tuple[str, ...] = field((), help="tags of the run")
    mode: Mode | None = field(
        None,
        help="`offline` writes files and uses no network, `disabled` does nothing; by default "
        "`WANDB_MODE`, else `online`",
    )
    dir: str | None = field(
        None,
        validator=optional(min_len(1)),
        help="directory of W&B's files; by default `plugins/wandb/` of the run directory",
    )
    id: str | None = field(
        None,
        validator=optional(_NAME),
        help="id of the run of W&B, to continue it; by default a resumed run continues its own",
    )
    every: int = field(
        1, validator=ge(1), help="updates between two points of loss, norm, time and memory"
    )


SPEC = PluginSpec(
    name="wandb",
    load="neaptide_wandb.plugin:WandbPlugin",
    config=WandbConfig,
    summary="Losses by phase, rates, memory, jumps, plugins' metrics and settings in W&B.",
    observer=True,
    numerics="exact",
)
