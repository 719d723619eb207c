"""Settings and manifest of `low-precision-backward`."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_

from neaptide.api.phases import TrainedPhase  # noqa: TC001 - the type of a setting is read
from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.sensitive import LARGE_ENOUGH, SENSITIVE_WEIGHTS


def _distinct(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        msg = f"{attribute.name!r} must not be empty (got []); name one, or remove the plugin"
        raise ValueError(msg)
    if len(set(value)) != len(value):
        msg = f"{attribute.name!r} must not contain an entry twice (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class LowPrecisionBackwardConfig:
    """`[plugins.low-precision-backward]`."""

    dtype: Literal["int8", "fp8"] = field(
        "int8",
        validator=in_(("int8", "fp8")),
        help="dtype of the rounded factors: `int8` rounds stochastically (unbiased); `fp8` rounds "
        "to the nearest number, gradients to e5m2, weights and activations to e4m3",
    )
    phases: tuple[TrainedPhase, ...] = field(
        ("full",),
        validator=_distinct,
        help="phases whose backward is in low precision: `warmup`, `full`, `correct`",
    )
    check_every: int = field(
        200,
        validator=ge(1),
        help="updates in low precision between two measurements of the extra variance (the "
        "variance that rounding adds to the gradient)",
    )
    limit: float = field(
        0.025,
        validator=gt(0.0),
        help="largest extra variance, divided by the gradient's own variance; above this limit the "
        "backward is exact for the rest of the run",
    )
    include: tuple[str, ...] = field(
        ("*",),
        validator=_distinct,
        help="patterns of the weights whose products are computed in low precision",
    )
    exclude: tuple[str, ...] = field(
        SENSITIVE_WEIGHTS, help="patterns of the weights whose products stay exact"
    )
    min_elements: int = field(
        LARGE_ENOUGH,
        validator=ge(1),
        help="products of weights with fewer elements stay exact, because low precision would not "
        "be faster",
    )
    min_rows: int = field(
        32, validator=ge(1), help="products with fewer rows (samples or tokens) stay exact"
    )
    even_if_slower: bool = field(
        False, help="run even on hardware that is known to be slower in low precision"
    )


SPEC = PluginSpec(
    name="low-precision-backward",
    load="neaptide_plugins.low_precision_backward.plugin:LowPrecisionBackward",
    config=LowPrecisionBackwardConfig,
    summary="Matrix products of the backward in fp8 or int8; measures the error, and returns to "
    "exact products if it is too large.",
    claims={"linear.backward"},
    after={"mixed-precision"},
    numerics="changes-training",
)
