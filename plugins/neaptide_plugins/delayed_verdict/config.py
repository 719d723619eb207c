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

    after: int = field(50, validator=ge(1), help="updates from an accepted jump to its verdict")
    average: int = field(
        25,
        validator=ge(1),
        help="the weights are averaged over this many updates before the verdict",
    )
    batches: int = field(
        4,
        validator=ge(2),
        help="number of batches that judge a jump; each is used before the model trains on it",
    )
    contrast: Literal["mirrored", "undone"] = field(
        "mirrored",
        validator=in_(("mirrored", "undone")),
        help="how a gain is computed from losses of the mean weights m and the jump j: `mirrored` "
        "is (loss(m - j) - loss(m + j)) / 2; `undone` is loss(m - j) - loss(m)",
    )
    certainty: float = field(
        2.0, validator=ge(0.0), help="a gain within this many standard errors of 0 is unclear"
    )
    tier: Literal["device", "host"] = field(
        "host",
        validator=in_(("device", "host")),
        help="where the mean, the jump and the snapshot are stored",
    )
    state: Literal["float32", "bfloat16"] = field(
        "float32", validator=in_(("float32", "bfloat16")), help="dtype of the mean weights"
    )
    grow: float = field(
        1.25, validator=ge(1.0), help="factor of the predictor's scale after a worthwhile jump"
    )
    shrink: float = field(0.5, validator=_factor, help="factor of the scale after a harmful jump")
    window_grow: float = field(
        1.25, validator=ge(1.0), help="factor of the predictor's window after a worthwhile jump"
    )
    window_shrink: float = field(
        0.5, validator=_factor, help="factor of the window after a harmful jump"
    )
    largest: float = field(2.0, validator=ge(1.0), help="largest scale and window")
    smallest: float = field(0.25, validator=_factor, help="smallest scale and window")
    patience: int = field(3, validator=ge(1), help="harmful jumps in a row that begin a pause")
    pause: int = field(500, validator=ge(1), help="updates without jumps in a pause")

    @average.validator
    def _average_fits(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if value > self.after:
            msg = f"'average' must be at most after = {self.after} (got {value})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="delayed-verdict",
    load="neaptide_plugins.delayed_verdict.plugin:DelayedVerdict",
    config=DelayedVerdictConfig,
    summary="Judges each jump some updates later, compares the averaged weights with and without "
    "it, and adjusts how far jumps go.",
    claims={"pace"},
    requires={"predictor"},
    numerics="changes-training",
)
