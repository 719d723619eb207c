"""The plugin: its forecaster corrects two curves by rollouts of recurrent models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from neaptide_toolkit.forecasting.plugin import DynamicsPlugin

from .config import DynamicsRssmConfig
from .forecaster import RssmForecaster

if TYPE_CHECKING:
    from neaptide_toolkit.predictors.learning_rate import RateFactor


@attrs.define(eq=False)
class DynamicsRssm(DynamicsPlugin[DynamicsRssmConfig]):
    """Learns from each update when the history contains the update."""

    title: ClassVar[str] = "dynamics-rssm"

    def _new(self, factor: RateFactor, steps: int, seed: int) -> RssmForecaster:
        return RssmForecaster(self.config, factor, steps, seed)
