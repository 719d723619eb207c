"""Settings and manifest of `activation-compression`."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import ge

from neaptide.api.phases import TRAINED, TrainedPhase
from neaptide.config import field
from neaptide.plugin import PluginSpec

Family = Literal[
    "activation", "attention", "convolution", "matmul", "norm", "pool", "product", "softmax"
]
_SMALLEST, _LARGEST = 16, 4096


def _power_of_two(_: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if not _SMALLEST <= value <= _LARGEST or value & (value - 1):
        msg = (
            f"{attribute.name!r} must be a power of two from {_SMALLEST} to {_LARGEST} "
            f"(got {value})"
        )
        raise ValueError(msg)


def _some(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        msg = f"{attribute.name!r} must name at least one phase (got []), or remove the plugin"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class ActivationCompressionConfig:
    """`[plugins.activation-compression]`."""

    group: int = field(
        128, validator=_power_of_two, help="number of neighbouring elements that share a scale"
    )
    min_elements: int = field(
        1024, validator=ge(1), help="tensors with fewer elements are not compressed"
    )
    exclude: tuple[Family, ...] = field(
        (),
        help="kinds of operations whose saved tensors stay exact: `matmul`, `convolution`, "
        "`product`, `norm`, `activation`, `softmax`, `attention`, `pool`",
    )
    phases: tuple[TrainedPhase, ...] = field(
        TRAINED, validator=_some, help="phases in which to compress"
    )
    check_every: int = field(
        100,
        validator=ge(0),
        help="steps between two measurements of the gradients' error; each measurement "
        "costs two more forwards and backwards; 0 disables the measurements",
    )


SPEC = PluginSpec(
    name="activation-compression",
    load="neaptide_plugins.activation_compression.plugin:ActivationCompression",
    config=ActivationCompressionConfig,
    summary="Stores activations for the backward as int8: a quarter of float32, half of bfloat16.",
    claims={"saved-tensors"},
    # A measurement runs backwards, and a backward must run outside of autocast.
    before={"mixed-precision", "activation-checkpointing"},
    phases=TRAINED,
    numerics="changes-training",
)
