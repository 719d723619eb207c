"""Settings shared by the predictors that use a window. This module does not import torch."""

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
        help="where the samples are stored; `host` is RAM, `pinned` is page-locked RAM that the "
        "GPU reads",
    )
    state: State = field(
        "float32",
        validator=in_(("float32", "bfloat16", "int8")),
        help="format of the samples; in bfloat16 and int8 the differences from the first sample "
        "are stored, rounded stochastically",
    )
    apply_every: int = field(
        1,
        validator=ge(1),
        help="number of windows whose predicted changes are summed and applied as one jump",
    )
    search_batches: int = field(
        0,
        validator=ge(0),
        help="number of batches on which the best length of a jump is searched; the search tries "
        "lengths from 0 to `8 * scale`; `0`: no search, the length is `scale`",
    )
    rounding: Literal["nearest", "stochastic"] = field(
        "nearest",
        validator=in_(("nearest", "stochastic")),
        help="rounding when a jump is added to bfloat16 and float16 weights; `nearest` loses "
        "changes below half of the last digit, `stochastic` keeps them on average",
    )

    __repr__ = one_line
