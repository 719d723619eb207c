"""Settings and manifest of `gradient-accumulation`."""

from __future__ import annotations

import attrs
from attrs.validators import ge

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class GradientAccumulationConfig:
    """`[plugins.gradient-accumulation]`."""

    steps: int = field(
        1,
        validator=ge(1),
        help="number of micro-batches for one update; with `across_steps`, number of calls of "
        "`trainer.step` for one update",
    )
    across_steps: bool = field(
        default=False,
        help="accumulate over `steps` calls of `trainer.step` instead of splitting each batch",
    )
    scale_lr: bool = field(
        default=False, help="multiply the learning rate by `steps`; only with `across_steps`"
    )
    normalize: bool = field(
        default=True,
        help="average over all accumulated samples or tokens; with false the gradients of "
        "the calls are summed, which is allowed only with `across_steps`",
    )

    @scale_lr.validator
    def _needs_across(self, attribute: attrs.Attribute[bool], value: bool) -> None:  # noqa: FBT001 - attrs calls it
        if value and not self.across_steps:
            msg = f"{attribute.name!r} needs across_steps = true (got {value})"
            raise ValueError(msg)

    @normalize.validator
    def _sums_need_across(self, attribute: attrs.Attribute[bool], value: bool) -> None:  # noqa: FBT001 - attrs calls it
        if not value and not self.across_steps:
            msg = f"{attribute.name!r} = false needs across_steps = true (got {value})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="gradient-accumulation",
    load="neaptide_plugins.gradient_accumulation.plugin:GradientAccumulation",
    config=GradientAccumulationConfig,
    summary="One update from several micro-batches, weighted exactly.",
    claims={"gradient.accumulation"},
    search_space=tuple({"plugins": {"gradient-accumulation": {"steps": n}}} for n in (2, 4, 8)),
    presets={"aggressive": {"steps": 4}},
    converts={"deepspeed": "neaptide_plugins.gradient_accumulation.deepspeed:convert"},
    numerics="tolerance",
    rtol=1e-5,
)
