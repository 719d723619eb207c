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
        help="how the gain of a jump is computed from the mean weights m and the jump j: "
        "`mirrored` is (loss(m - j) - loss(m + j)) / 2; `undone` is loss(m - j) - loss(m)",
    )
    certainty: float = field(
        2.0,
        validator=ge(0.0),
        help="the verdict is unclear if the gain is at most this many standard errors from 0",
    )
    tier: Literal["device", "host"] = field(
        "host",
        validator=in_(("device", "host")),
        help="where the mean weights, the jump and a copy of the current weights are stored",
    )
    state: Literal["float32", "bfloat16"] = field(
        "float32", validator=in_(("float32", "bfloat16")), help="dtype of the mean weights"
    )
    grow: float = field(
        1.25,
        validator=ge(1.0),
        help="after a worthwhile jump, the scale factor (for the length of jumps) is multiplied by "
        "this",
    )
    shrink: float = field(
        0.5, validator=_factor, help="after a harmful jump, the scale factor is multiplied by this"
    )
    window_grow: float = field(
        1.25,
        validator=ge(1.0),
        help="after a worthwhile jump, the window factor (for the length of the predictor's "
        "windows) is multiplied by this",
    )
    window_shrink: float = field(
        0.5, validator=_factor, help="after a harmful jump, the window factor is multiplied by this"
    )
    largest: float = field(
        2.0, validator=ge(1.0), help="upper limit of the scale factor and of the window factor"
    )
    smallest: float = field(
        0.25, validator=_factor, help="lower limit of the scale factor and of the window factor"
    )
    patience: int = field(
        3, validator=ge(1), help="number of harmful jumps in a row after which a pause begins"
    )
    pause: int = field(
        500, validator=ge(1), help="length of a pause, in updates; no jump is made in a pause"
    )
    budget: float = field(
        0.01,
        validator=_factor,
        help="share of the updates that jumps and verdicts may cost beyond the measured worth of "
        "the jumps; `1`: no limit",
    )

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
    version=2,
    dry_run={"budget": 1.0},
    claims={"pace"},
    requires={"predictor"},
    numerics="changes-training",
)
