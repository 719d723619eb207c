"""Settings and manifest of `metrics`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import in_, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec

BUILT_IN = ("perplexity", "accuracy")


def name_of(metric: str) -> str:
    """Return the name of a metric in the records: that of the function, without its module."""
    return metric.rpartition(":")[2].rpartition(".")[2]


def _metrics(
    _: object, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]
) -> None:
    for metric in value:
        module, _colon, function = metric.partition(":")
        if metric not in BUILT_IN and not (module and function):
            msg = (
                f"{attribute.name!r} must have {', '.join(BUILT_IN)} or 'package.module:function' "
                f"(got {metric!r})"
            )
            raise ValueError(msg)
    names = [name_of(metric) for metric in value]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not value:
        which = f"has {twice[0]!r} twice" if twice else "must name a metric"
        msg = f"{attribute.name!r} {which} (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """`[plugins.metrics]`."""

    compute: tuple[str, ...] = field(
        ("perplexity",),
        validator=_metrics,
        help="`perplexity`, `accuracy`, or functions as `package.module:function`",
    )
    targets: str | None = field(
        None,
        help="key of the targets in a batch, for `accuracy`; none: those whose cross-entropy is "
        "the loss",
    )
    shift: Literal[0, 1] | None = field(
        None,
        validator=optional(in_((0, 1))),
        help="1 if logits predict the target of the next position, as in causal models, else 0; "
        "none: as the loss does",
    )


SPEC = PluginSpec(
    name="metrics",
    load="neaptide_plugins.metrics.plugin:MetricsPlugin",
    config=MetricsConfig,
    summary="Perplexity, accuracy and functions of your own at each evaluation.",
    numerics="exact",
)
