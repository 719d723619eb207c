"""Settings, presets and manifest of `mixed-precision`."""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le, lt, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.sensitive import LARGE_ENOUGH, SENSITIVE_WEIGHTS

from .scaling import LARGEST, SMALLEST, LossScale

Precision = Literal["fp32", "bf16", "fp16", "fp8", "auto"]

_precision = in_(("fp32", "bf16", "fp16", "fp8", "auto"))


_own = optional(_precision)


def _power_of_two(_: Any, attribute: attrs.Attribute[float], value: float) -> None:
    # Scaling by a factor that is not a power of two would round every gradient.
    if value <= 0 or math.frexp(value)[0] != 0.5:  # noqa: PLR2004 - the mantissa of a power of two
        msg = f"{attribute.name!r} must be a power of two (got {value})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class MixedPrecisionConfig:
    """`[plugins.mixed-precision]`."""

    dtype: Precision = field(
        "auto",
        validator=_precision,
        help="dtype of forwards; `auto` is bf16, or fp16 on a device without bf16",
    )
    warmup: Precision | None = field(None, validator=_own, help="dtype of Warmup; unset: `dtype`")
    full: Precision | None = field(None, validator=_own, help="dtype of Full; unset: `dtype`")
    predict: Precision | None = field(
        None, validator=_own, help="dtype of the probes in Predict; unset: `dtype`"
    )
    correct: Precision | None = field(None, validator=_own, help="dtype of Correct; unset: `dtype`")
    evaluate: Precision | None = field(
        None, validator=_own, help="dtype of evaluations; unset: `dtype`"
    )
    initial_scale: float = field(
        65536.0,
        validator=and_(_power_of_two, ge(SMALLEST), le(LARGEST)),
        help="loss scale at the start, in phases that run in fp16",
    )
    growth_factor: float = field(
        2.0,
        validator=and_(_power_of_two, gt(1.0)),
        help="the loss scale is multiplied by this factor after `growth_interval` updates without "
        "overflow",
    )
    backoff_factor: float = field(
        0.5,
        validator=and_(_power_of_two, lt(1.0)),
        help="the loss scale is multiplied by this factor after an overflow",
    )
    growth_interval: int = field(
        2000, validator=ge(1), help="updates without overflow before the loss scale grows"
    )
    fp8_exclude: tuple[str, ...] = field(
        SENSITIVE_WEIGHTS,
        help="patterns of the weights whose products stay in bf16 when other products are in fp8",
    )
    fp8_min_elements: int = field(
        LARGE_ENOUGH, validator=ge(1), help="products of weights with fewer elements stay in bf16"
    )
    fp8_even_if_slower: bool = field(
        False, help="use fp8 even on hardware on which fp8 is known to be slower"
    )

    def precision(self, name: str) -> Precision:
        """Return the precision of a phase or of `evaluate`."""
        own: Precision | None = getattr(self, name)
        return own or self.dtype

    def setting(self, name: str) -> str:
        """Return the key that determines the precision of a phase or of `evaluate`."""
        return name if getattr(self, name) else "dtype"

    def loss_scale(self) -> LossScale:
        """Return the initial loss scale of a run."""
        return LossScale(
            scale=self.initial_scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
        )


SPEC = PluginSpec(
    name="mixed-precision",
    load="neaptide_plugins.mixed_precision.plugin:MixedPrecision",
    config=MixedPrecisionConfig,
    summary="Autocast with a dtype per phase, fp8 products; loss scaling in fp16.",
    claims={"autocast"},
    search_space=({"plugins": {"mixed-precision": {"dtype": "bf16"}}},),
    presets={
        "conservative": {"dtype": "fp32", "predict": "bf16"},
        "aggressive": {"dtype": "auto"},
    },
    converts={"deepspeed": "neaptide_plugins.mixed_precision.deepspeed:convert"},
    numerics="changes-training",
)
