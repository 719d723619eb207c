"""A predictor that moves the weights further at their average velocity over a window."""

from __future__ import annotations

import attrs

from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.gains import Gains, reach
from neaptide_toolkit.predictors.held_tensors import WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.predictors.window_predictor import WindowPredictor

from .config import SPEC, PredictorMomentumConfig
from .velocity import coefficient


@attrs.define(eq=False)
class PredictorMomentum(WindowPredictor[PredictorMomentumConfig]):
    """Accumulates the velocity as one weighted sum of the samples, instead of storing them all."""

    name = SPEC.name
    ops = WindowOps(quantize_int8, dequantize_int8, apply_delta)

    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return a window with the configured number of samples."""
        del updates
        return WindowPlan(self.config.samples, max(1, round(self.config.sample_every * stretch)))

    def coefficients(self, index: int, samples: int) -> tuple[float]:
        """Return the sample's coefficient in the velocity."""
        return (coefficient(index, samples, self.config.decay),)

    def predict(self, window: Window, horizon: int, scale: float) -> Gains:
        """Return a jump of `scale` times `horizon` updates at the average velocity of `window`."""
        updates = reach(horizon, scale)
        return Gains((updates / window.plan.every,), round(updates))
