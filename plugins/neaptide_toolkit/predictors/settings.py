"""Settings shared by the predictors that use a window. No torch."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le

from neaptide.config import field
from neaptide.text import one_line

State = Literal["float32", "bfloat16", "int8"]
WindowTier = Literal["device", "host", "pinned"]


@attrs.frozen(kw_only=True)
class WindowSettings:
    """Base of a predictor's config class."""

    scale: float = field(
        0.5,
        validator=and_(gt(0.0), le(1.0)),
        help="length of a jump, as a share of `phases.predict.max_horizon`",
    )
    sample_every: int = field(5, validator=ge(1), help="updates between two samples of the weights")
    tier: WindowTier = field(
        "host",
        validator=in_(("device", "host", "pinned")),
        help="where the samples are kept; `pinned` is page-locked RAM, used from the GPU",
    )
    state: State = field(
        "float32",
        validator=in_(("float32", "bfloat16", "int8")),
        help="format of the samples; below float32 they are differences from the first sample, "
        "rounded stochastically",
    )
    apply_every: int = field(
        1,
        validator=ge(1),
        help="number of windows whose predicted updates are added to one jump",
    )
    search_batches: int = field(
        0,
        validator=ge(0),
        help="number of batches, one per update, on which the best length of the jump is searched, "
        "up to 8 times `scale`, from the average of the window's last quarter; 0: `scale` is used "
        "unchanged",
    )
    rounding: Literal["nearest", "stochastic"] = field(
        "nearest",
        validator=in_(("nearest", "stochastic")),
        help="rounding of bfloat16 and float16 weights after a jump; with `stochastic` changes "
        "below half of the last digit are not lost on average",
    )

    __repr__ = one_line
