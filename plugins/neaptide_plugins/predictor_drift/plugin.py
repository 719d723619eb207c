"""A predictor that proposes the drift from a window's first half to its second half."""

from __future__ import annotations

import attrs

from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.gains import Gains
from neaptide_toolkit.predictors.held_tensors import WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.predictors.window_predictor import WindowPredictor

from .config import SPEC, PredictorDriftConfig
from .drift_coefficients import half_at, reach, share_of


@attrs.define(eq=False)
class PredictorDrift(WindowPredictor[PredictorDriftConfig]):
    """Accumulates one weighted sum: mean(second half) - mean(first half) of a window's samples."""

    name = SPEC.name
    ops = WindowOps(quantize_int8, dequantize_int8, apply_delta)

    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return a window whose length grows with the run."""
        config = self.config
        every = config.sample_every
        half = half_at(
            updates, config.window_fraction, config.min_window, config.max_window, every, stretch
        )
        return WindowPlan(2 * half, every)

    def coefficients(self, index: int, samples: int) -> tuple[float]:
        """Return the sample's coefficient in the drift."""
        return (share_of(index, samples),)

    def predict(self, window: Window, horizon: int, scale: float) -> Gains:
        """Return a jump that changes the weights by `scale` times the drift."""
        gain, reached = reach(window.length // 2, scale, horizon)
        return Gains((gain,), reached)
