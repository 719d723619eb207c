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

    warmup: Precision = field("full", validator=_precision, help="weights trained in Warmup")
    full: Precision = field(
        "full",
        validator=_precision,
        help="weights trained in Full; `int8` leaves nothing but codes, to which updates are "
        "rounded stochastically",
    )
    predict: Precision = field(
        "int8", validator=_precision, help="weights in Predict, where jumps are judged"
    )
    correct: Precision = field("full", validator=_precision, help="weights trained in Correct")
    evaluate: Precision = field("full", validator=_precision, help="weights in evaluations")
    symmetric: bool = field(
        default=True, help="codes in [-127, 127], centred on 0; false adds a zero point to a scale"
    )
    granularity: Literal["tensor", "channel", "block"] = field(
        "channel", help="what shares a scale: a weight, one of its output channels, or a block"
    )
    block: int = field(
        BLOCK, validator=ge(8), help="elements of a channel in a block; it must divide a channel"
    )
    dynamic_range: bool = field(
        default=True,
        help="measure ranges whenever weights are encoded; false fixes them by `calibration` as "
        "a phase begins",
    )
    calibration: Literal["minmax", "percentile", "mse"] = field(
        "minmax",
        help="what a fixed range leaves out: nothing, what lies over a percentile, or what makes "
        "the squared error least",
    )
    percentile: float = field(
        99.9, validator=and_(gt(50.0), le(100.0)), help="of the magnitudes that are in range"
    )
    include: tuple[str, ...] | None = field(
        None,
        help="patterns of modules' names; left out, every matrix and convolution but embeddings, "
        "norms, heads and recurrent layers",
    )
    exclude: tuple[str, ...] = field((), help="patterns of modules that keep their precision")
    measure_every: int = field(
        10,
        validator=ge(0),
        help="Predict phases from one measurement of the error and of the loss gap to the next, "
        "each of which costs a probe; 0 is never",
    )
    gap_limit: float | None = field(
        None,
        validator=optional(gt(0.0)),
        help="adaptive: where the loss gap, relative to the loss, is larger, the quarter of the "
        "weights with the largest errors keep their precision from then on",
    )

    @property
    def trains_int8(self) -> bool:
        """Whether any phase with updates is int8."""
        return any(self.is_int8(name) for name in TRAINED)

    def is_int8(self, setting: str) -> bool:
        """Return whether a phase, or evaluations, are int8; what has no setting is full."""
        return bool(getattr(self, setting, "full") == "int8")

    @predict.validator
    def _does_something(self, attribute: attrs.Attribute[str], value: str) -> None:
        if all(getattr(self, name) == "full" for name in (*TRAINED, "predict", "evaluate")):
            msg = (
                f"{attribute.name!r} or another phase must be 'int8' (got {value!r}, and 'full' "
                f"everywhere); or take the plugin out"
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
    summary="Weights as int8 in Predict, the full ones off the device and back bit for bit.",
    claims={"linear.weight"},
    numerics="changes-training",
)
