"""Settings and manifest of `delayed-verdict`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.plugin import PluginSpec

_factor = and_(gt(0.0), le(1.0))


@attrs.frozen(kw_only=True)
class DelayedVerdictConfig:
    """`[plugins.delayed-verdict]`."""

    after: int = field(
        50, validator=ge(1), help="updates between an accepted jump and its judgement"
    )
    average: int = field(
        25, validator=ge(1), help="the last of those updates, whose mean weights are judged"
    )
    batches: int = field(
        4, validator=ge(2), help="batches it is judged on, each before it is trained on"
    )
    contrast: Literal["mirrored", "undone"] = field(
        "mirrored",
        validator=in_(("mirrored", "undone")),
        help="a gain is half the difference between the mean less the jump and the mean plus it; "
        "or that between the mean less the jump and the mean",
    )
    certainty: float = field(
        2.0, validator=ge(0.0), help="standard errors that a gain must be from 0 to count"
    )
    tier: Literal["device", "host"] = field(
        "host", validator=in_(("device", "host")), help="where mean, jump and snapshot are kept"
    )
    state: Literal["float32", "bfloat16"] = field(
        "float32", validator=in_(("float32", "bfloat16")), help="how the mean of weights is kept"
    )
    grow: float = field(
        1.25, validator=ge(1.0), help="what a worthwhile jump multiplies the scale by"
    )
    shrink: float = field(0.5, validator=_factor, help="what a harmful one multiplies it by")
    window_grow: float = field(
        1.25, validator=ge(1.0), help="what a worthwhile jump multiplies the window by"
    )
    window_shrink: float = field(0.5, validator=_factor, help="what a harmful one multiplies it by")
    largest: float = field(2.0, validator=ge(1.0), help="largest scale and window")
    smallest: float = field(0.25, validator=_factor, help="smallest scale and window")
    patience: int = field(3, validator=ge(1), help="harmful jumps in a row before there are none")
    pause: int = field(500, validator=ge(1), help="updates without jumps then")

    @average.validator
    def _average_fits(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value > self.after:
            msg = f"'average' must be at most after = {self.after} (got {value})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="delayed-verdict",
    load="neaptide_plugins.delayed_verdict.plugin:DelayedVerdict",
    config=DelayedVerdictConfig,
    summary="Judges each jump some updates later on averaged weights, with and without it, and "
    "sets the pace of the next.",
    claims={"pace"},
    requires={"predictor"},
    numerics="changes-training",
)
