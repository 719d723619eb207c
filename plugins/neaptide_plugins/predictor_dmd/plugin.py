"""A predictor that stores snapshots of the weights and extrapolates their dynamic modes."""

from __future__ import annotations

import attrs

from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.gains import Gains, reach
from neaptide_toolkit.predictors.held_tensors import WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.predictors.window_predictor import WindowPredictor

from .config import SPEC, PredictorDmdConfig
from .modes import forecast


@attrs.define(eq=False)
class PredictorDmd(WindowPredictor[PredictorDmdConfig]):
    """Stores every sample of the window: each row of the window is one sample."""

    name = SPEC.name
    ops = WindowOps(quantize_int8, dequantize_int8, apply_delta)

    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return a window with the configured number of snapshots."""
        del updates
        return WindowPlan(self.config.snapshots, max(1, round(self.config.sample_every * stretch)))

    def coefficients(self, index: int, samples: int) -> tuple[float, ...]:
        """Return 1 for the sample's own row and 0 for the others."""
        return tuple(float(index == row) for row in range(samples))

    def predict(self, window: Window, horizon: int, scale: float) -> Gains | None:
        """Extrapolate the modes over `scale` times `horizon` updates.

        Return None if there are no distinct modes.
        """
        updates, config = reach(horizon, scale), self.config
        found = forecast(
            window.gram(),
            rank=config.rank,
            ahead=updates / window.plan.every,
            damping=config.damping,
        )
        return None if found is None else Gains(tuple(found), round(updates))
