"""Settings and manifest of `tried-shrink`: a jump without what looks like noise."""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_

from neaptide import PluginSpec, field
from neaptide.hooks.enabling import DYNAMICS


@attrs.frozen(kw_only=True)
class ShrinkConfig:
    """`[plugins.tried-shrink]`."""

    by: str = field(
        "steps",
        validator=in_(("steps", "spectrum")),
        help="what noise is told by: the sizes of a weight's own steps, or a matrix's spectrum",
    )
    every: int = field(20, validator=ge(1), help="updates between two samples of the weights")


SPEC = PluginSpec(
    name="tried-shrink",
    load="neaptide_tried.shrinking:Shrink",
    config=ShrinkConfig,
    summary="Shrinks a proposed jump where it looks like noise.",
    claims={DYNAMICS},  # like a forecast, it is left out of the side that does not jump
    phases={"predict"},
    numerics="changes-training",
)
