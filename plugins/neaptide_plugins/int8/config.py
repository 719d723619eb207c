"""Settings and manifest of `int8`."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le, optional

from neaptide.api.phases import TRAINED
from neaptide.config import field
from neaptide.plugin import PluginSpec

Precision = Literal["full", "int8"]

BLOCK = 64

_precision = in_(("full", "int8"))


@attrs.frozen(kw_only=True)
class Int8Config:
    """`[plugins.int8]`."""

    warmup: Precision = field(
        "full", validator=_precision, help="form of the weights in Warmup: `full` or `int8`"
    )
    full: Precision = field(
        "full",
        validator=_precision,
        help="form of the weights in Full; with `int8` only codes exist, and updated weights are "
        "rounded to codes stochastically",
    )
    predict: Precision = field(
        "int8", validator=_precision, help="form of the weights in Predict, where jumps are judged"
    )
    correct: Precision = field("full", validator=_precision, help="form of the weights in Correct")
    evaluate: Precision = field(
        "full", validator=_precision, help="form of the weights in evaluations"
    )
    symmetric: bool = field(
        default=True, help="codes in [-127, 127] centred on 0; false: each scale has a zero point"
    )
    granularity: Literal["tensor", "channel", "block"] = field(
        "channel",
        help="the group of elements that share a scale: `tensor` (the whole weight), an output "
        "`channel` or a `block`",
    )
    block: int = field(
        BLOCK,
        validator=ge(8),
        help="number of elements in a block, at least 8; the number of elements in a channel must "
        "be a multiple of this number",
    )
    dynamic_range: bool = field(
        default=True,
        help="measure the range of each group whenever a weight is encoded; false: measure it by "
        "`calibration` only when the weights become int8, and use it until the weights are full "
        "again",
    )
    calibration: Literal["minmax", "percentile", "mse"] = field(
        "minmax",
        help="how a fixed range is chosen: from all values (`minmax`), from a percentile of the "
        "magnitudes (`percentile`), or by the least squared error (`mse`)",
    )
    percentile: float = field(
        99.9,
        validator=and_(gt(50.0), le(100.0)),
        help='percentile of the magnitudes for `calibration = "percentile"`',
    )
    include: tuple[str, ...] | None = field(
        None,
        help="patterns of the names of modules to quantize; by default every matrix and "
        "convolution except embeddings, norms, heads and recurrent layers",
    )
    exclude: tuple[str, ...] = field(
        (), help="patterns of the names of modules that are not quantized"
    )
    measure_every: int = field(
        10,
        validator=ge(0),
        help="measure the loss gap (int8 against full weights) in every n-th Predict phase, where "
        "n is this value; each measurement costs one forward; 0 disables measurements",
    )
    gap_limit: float | None = field(
        None,
        validator=optional(gt(0.0)),
        help="if the relative loss gap exceeds this limit, the quarter of the weights with the "
        "largest errors is no longer quantized",
    )

    @property
    def trains_int8(self) -> bool:
        """True if any phase trains in int8."""
        return any(self.is_int8(name) for name in TRAINED)

    def is_int8(self, setting: str) -> bool:
        """Return whether a phase or `evaluate` uses int8; False for a phase without a setting."""
        return bool(getattr(self, setting, "full") == "int8")

    @predict.validator
    def _does_something(self, attribute: attrs.Attribute[str], value: str) -> None:
        if all(getattr(self, name) == "full" for name in (*TRAINED, "predict", "evaluate")):
            msg = (
                f"{attribute.name!r} or another phase must be 'int8' (got {value!r}, and 'full' "
                f"in all others), or remove the plugin"
            )
            raise ValueError(msg)

    @block.validator
    def _has_blocks(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value != BLOCK and self.granularity != "block":
            msg = f"{attribute.name!r} needs granularity = 'block' (got {value})"
            raise ValueError(msg)

    @symmetric.validator
    def _is_trainable(self, attribute: attrs.Attribute[bool], value: bool) -> None:  # noqa: FBT001 - attrs calls it
        trained = [name for name in TRAINED if getattr(self, name) == "int8"]
        if trained and not value:
            msg = f"{attribute.name!r} must be true where {trained[0]} = 'int8' (got {value})"
            raise ValueError(msg)

    @calibration.validator
    def _is_used(self, attribute: attrs.Attribute[str], value: str) -> None:
        if self.dynamic_range and value != "minmax":
            msg = f"{attribute.name!r} needs dynamic_range = false (got {value!r})"
            raise ValueError(msg)

    @gap_limit.validator
    def _is_measured(self, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and not self.measure_every:
            msg = f"{attribute.name!r} needs measure_every >= 1 (got {value}, and 0 there)"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="int8",
    load="neaptide_plugins.int8.plugin:Int8",
    config=Int8Config,
    summary="Weights as int8 in Predict; the full weights leave the device and return bit for bit.",
    claims={"linear.weight"},
    numerics="changes-training",
)
