"""Corrects the forecasts of the curves with one ridge regression per horizon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.forecasting.forecaster import INPUTS, Forecaster
from neaptide_toolkit.forecasting.horizon import PRIOR

from .config import DynamicsLinearConfig
from .ridge import Ridge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.forecasting.horizon import Expected, LossReading, Outlook

LOOSER = 10.0
"""Penalty of a feature / penalty of an input that comes from the curves."""


@attrs.define(eq=False)
class LinearForecaster(Forecaster[DynamicsLinearConfig]):
    """A forecaster whose corrections come from ridge regressions of the observed losses."""

    ridges: list[Ridge] = attrs.field(init=False)
    """One per horizon."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        config = self.config
        self.ridges = [
            ridge_of(horizon, config.every, config.ridge, config.forgetting)
            for horizon in config.horizons
        ]

    @property
    def forgetting(self) -> float:
        """`HorizonScore.power` of the scores."""
        return self.config.forgetting

    @property
    def learned_bytes(self) -> int:
        """Bytes of the regressions' tensors."""
        return sum(ridge.bytes for ridge in self.ridges)

    def _fit(self) -> None:
        for ridge in self.ridges:
            if ridge.samples:
                ridge.fit()

    def _corrections(
        self, readings: Sequence[LossReading], outlooks: Sequence[Sequence[Outlook]], *, kept: bool
    ) -> list[list[tuple[float, ...]]]:
        del readings, kept
        return [
            [(ridge.predict(each.inputs),) for ridge, each in zip(self.ridges, row, strict=True)]
            for row in outlooks
        ]

    def _learn(self, place: int, expected: Expected, residual: float) -> None:
        self.ridges[place].learn(expected.inputs, residual)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        state = super().state_dict()
        for each, ridge in zip(state["outlooks"], self.ridges, strict=True):
            each["ridge"] = ridge.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        for ridge, saved in zip(self.ridges, state["outlooks"], strict=True):
            ridge.load_state_dict(saved["ridge"])


def ridge_of(horizon: int, every: int, penalty: float, power: float) -> Ridge:
    """Return an untrained regression for one horizon.

    There is one sample per `every` updates. The targets of neighbouring samples overlap, so
    `horizon / every` samples have about as much information as one independent sample. Therefore
    the penalties are multiplied by `horizon / every`.
    """
    alike, curves = max(1.0, horizon / every), len(PRIOR)
    penalties = torch.full((1 + INPUTS,), penalty * alike, dtype=torch.float64, device="cpu")
    penalties[1 : 1 + curves] /= LOOSER
    return Ridge(penalties, curves, power)
