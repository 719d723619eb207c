"""Settings and manifest of `adaptive-phases`."""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class AdaptivePhasesConfig:
    """`[plugins.adaptive-phases]`."""

    lengths: tuple[int, ...] = field(
        (10, 20, 40, 80),
        help="lengths to choose from, in updates and in rising order: of a Full phase, and of the "
        "horizon of a jump, which is at most `phases.predict.max_horizon`",
    )
    exploration: float = field(
        1.0,
        validator=ge(0.0),
        help="a length is preferred by this many standard errors of its expected reward; with 1 or "
        "more, each length is tried in the end; with less, the first good one may stay",
    )
    ridge: float = field(
        1.0,
        validator=gt(0.0),
        help="penalty on the coefficients of the rewards; a higher penalty learns more slowly",
    )

    @lengths.validator
    def _lengths_rise(
        self, _attribute: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
    ) -> None:
        if len(value) < 2 or value[0] < 1 or sorted(set(value)) != list(value):  # noqa: PLR2004 - a choice
            msg = f"'lengths' must be two or more integers >= 1 in rising order (got {list(value)})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="adaptive-phases",
    load="neaptide_plugins.adaptive_phases.plugin:AdaptivePhases",
    config=AdaptivePhasesConfig,
    summary="Learns from judged jumps which lengths of Full phases and jumps save most.",
    claims={"phase-lengths"},
    numerics="changes-training",
)
