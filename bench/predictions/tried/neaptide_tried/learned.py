"""Settings and manifest of `tried-learned`: a small network proposes the jump of each weight."""

from __future__ import annotations

import attrs
from attrs.validators import ge

from neaptide import PluginSpec, field
from neaptide_toolkit.predictors.settings import WindowSettings


@attrs.frozen(kw_only=True)
class LearnedConfig(WindowSettings):
    """`[plugins.tried-learned]`."""

    unseen: str = field(
        "noisy-digits", help="the task of bench/predict.py that the network has not learned from"
    )
    min_window: int = field(100, validator=ge(25), help="updates in the shortest window")
    max_window: int = field(800, validator=ge(25), help="updates in the longest window")
    scale: float = field(1.0, help="factor of what the network proposes")


SPEC = PluginSpec(
    name="tried-learned",
    load="neaptide_tried.proposing:Learned",
    config=LearnedConfig,
    summary="Proposes jumps by a network that was trained on other runs.",
    dry_run={"min_window": 25, "max_window": 25, "sample_every": 1},
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
