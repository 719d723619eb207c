"""The plugin: its forecaster corrects two curves by ridge regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from neaptide_toolkit.forecasting.plugin import DynamicsPlugin

from .config import DynamicsLinearConfig
from .forecaster import LinearForecaster

if TYPE_CHECKING:
    from neaptide_toolkit.predictors.learning_rate import RateFactor


@attrs.define(eq=False)
class DynamicsLinear(DynamicsPlugin[DynamicsLinearConfig]):
    """Learns from each update when the history contains the update."""

    title: ClassVar[str] = "dynamics-linear"

    def _new(self, factor: RateFactor, steps: int, seed: int) -> LinearForecaster:
        del seed
        return LinearForecaster(self.config, factor, steps)
