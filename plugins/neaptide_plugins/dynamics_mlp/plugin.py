"""The plugin: its forecaster corrects two curves by an ensemble of small networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from neaptide_toolkit.forecasting.plugin import DynamicsPlugin

from .config import DynamicsMlpConfig
from .forecaster import MlpForecaster

if TYPE_CHECKING:
    from neaptide_toolkit.predictors.learning_rate import RateFactor


@attrs.define(eq=False)
class DynamicsMlp(DynamicsPlugin[DynamicsMlpConfig]):
    """Learns from each update when the history contains the update."""

    title: ClassVar[str] = "dynamics-mlp"

    def _new(self, factor: RateFactor, steps: int, seed: int) -> MlpForecaster:
        return MlpForecaster(self.config, factor, steps, seed)
