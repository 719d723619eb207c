"""A predictor that extrapolates a polynomial fitted to a window of weights."""

from __future__ import annotations

import attrs

from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.gains import Gains, reach
from neaptide_toolkit.predictors.held_tensors import WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.predictors.window_predictor import WindowPredictor

from .config import SPEC, PredictorExtrapolateConfig
from .fit import ahead, coefficients


@attrs.define(eq=False)
class PredictorExtrapolate(WindowPredictor[PredictorExtrapolateConfig]):
    """Accumulates the slope and the bend of the fit as two weighted sums of the samples."""

    name = SPEC.name
    ops = WindowOps(quantize_int8, dequantize_int8, apply_delta)

    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return a window with the configured number of samples."""
        del updates
        return WindowPlan(self.config.samples, max(1, round(self.config.sample_every * stretch)))

    def coefficients(self, index: int, samples: int) -> tuple[float, ...]:
        """Return the coefficients of the sample in the slope and, for order 2, in the bend."""
        return coefficients(index, samples, self.config.order)

    def predict(self, window: Window, horizon: int, scale: float) -> Gains:
        """Extrapolate the fit from the window's end by `scale` times `horizon` updates."""
        updates = reach(horizon, scale)
        plan = window.plan
        return Gains(ahead(plan.samples, updates / plan.every, self.config.order), round(updates))
