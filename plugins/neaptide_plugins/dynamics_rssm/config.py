"""Settings and manifest of `dynamics-rssm`."""

from __future__ import annotations

import math

import attrs
from attrs.validators import ge, gt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.forecasting.settings import ForecastSettings

AT_ONCE = 32
"""Samples that are encoded in one call, at most; targets of as many may come late."""


@attrs.frozen(kw_only=True)
class DynamicsRssmConfig(ForecastSettings):
    """`[plugins.dynamics-rssm]`."""

    members: int = field(3, validator=ge(2), help="models in the ensemble")
    stride: int = field(
        8, validator=ge(1), help="samples from one step of the models to the next one"
    )
    lr: float = field(1e-3, validator=gt(0.0), help="learning rate of the models")
    shrink: float = field(
        0.1,
        validator=ge(0.0),
        help="weight decay of the models, as in AdamW; with more, forecasts stay closer to two "
        "lines fitted to the losses",
    )
    rounds: int = field(
        2, validator=ge(1), help="gradient steps of the models after each 32 samples"
    )
    batch: int = field(8, validator=ge(1), help="rollouts in a gradient step")
    remembered: int = field(256, validator=ge(1), help="newest steps from which the models learn")

    @property
    def span(self) -> int:
        """Updates in a step of the models."""
        return self.stride * self.every

    @property
    def steps(self) -> int:
        """Steps of a rollout: as far as the longest horizon."""
        return math.ceil(self.horizons[-1] / self.span)

    @remembered.validator
    def _targets_come_in_time(self, _attribute: attrs.Attribute[int], value: int) -> None:
        late = self.horizons[-1] + self.around + AT_ONCE * self.every
        least = 2 + math.ceil(late / self.span)
        if value < least:
            msg = (
                f"'remembered' must be at least {least} steps of {self.span} updates, so that the "
                f"losses {self.horizons[-1]} updates ahead are seen in time (got {value})"
            )
            raise ValueError(msg)


SPEC = PluginSpec(
    name="dynamics-rssm",
    load="neaptide_plugins.dynamics_rssm.plugin:DynamicsRssm",
    config=DynamicsRssmConfig,
    summary="Forecasts the loss by rollouts of recurrent state-space models; where they disagree, "
    "the confidence is lower.",
    claims={"dynamics"},
    numerics="changes-training",
)
