"""Corrects the forecasts of the curves with an ensemble that learns from observed forecasts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.forecasting.forecaster import INPUTS, Forecaster
from neaptide_toolkit.forecasting.networks import drawn, moments, standard
from neaptide_toolkit.forecasting.trust import Trust

from .config import DynamicsMlpConfig
from .ensemble import MlpEnsemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.forecasting.horizon import Expected, LossReading, Outlook


@attrs.define(eq=False)
class MlpForecaster(Forecaster[DynamicsMlpConfig]):
    """A forecaster whose corrections come from an ensemble of small networks.

    A row is the inputs of one forecast and the logarithm of its horizon. All horizons share the
    networks. What they answer is multiplied by the trust in them, which is learned from answers
    whose targets they had not seen. So networks that learn noise do not spoil the curves' forecast.
    """

    ensemble: MlpEnsemble = attrs.field(init=False)
    rows: torch.Tensor = attrs.field(init=False)
    """Newest observed forecasts, float32 `[remembered, 1 + inputs]`; a ring."""
    targets: torch.Tensor = attrs.field(init=False)
    """float32 `[remembered]`: what the curves lacked."""
    observed: int = attrs.field(init=False, default=0)
    """Number of forecasts observed so far."""
    trusts: list[Trust] = attrs.field(init=False)
    """One per horizon."""
    centre: torch.Tensor = attrs.field(init=False)
    """float32 `[1 + inputs]`, from the last fit: subtracted from a row."""
    scale: torch.Tensor = attrs.field(init=False)
    """float32 `[1 + inputs]`, from the last fit: factors of a centred row."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        config, inputs = self.config, 1 + INPUTS
        self.ensemble = MlpEnsemble(config.members, inputs, config.hidden, self.seed)
        self.rows = torch.zeros(config.remembered, inputs, dtype=torch.float32, device="cpu")
        self.targets = self.rows.new_zeros(config.remembered)
        self.trusts = [Trust() for _ in config.horizons]
        self.centre, self.scale = self.rows.new_zeros(inputs), self.rows.new_zeros(inputs)

    @property
    def learned_bytes(self) -> int:
        """Bytes of the networks, of their optimizer, and of the observed forecasts."""
        held = (self.rows, self.targets, self.centre, self.scale)
        return self.ensemble.optimizer.bytes + sum(tensor.nbytes for tensor in held)

    def _learn(self, place: int, expected: Expected, residual: float) -> None:
        at = self.observed % self.config.remembered
        self.observed += 1
        self.rows[at] = _row(expected.inputs, self.config.horizons[place])
        self.targets[at] = residual
        self.trusts[place].settle(expected.update, residual)

    def _fit(self) -> None:
        known = min(self.observed, self.config.remembered)
        if not known:
            return
        rows, targets = self.rows[:known], self.targets[:known]
        self.centre, self.scale = moments(rows)
        inputs, config, learner = self._standard(rows), self.config, self.ensemble.optimizer
        for _ in range(config.rounds):
            places = drawn(self.seed, learner.steps, config.members, known, config.batch)
            found = self.ensemble.gradients(inputs[places], targets[places])
            learner.step(found, config.lr, config.shrink)

    def _standard(self, rows: torch.Tensor) -> torch.Tensor:
        return standard(rows, self.centre, self.scale)

    def _corrections(
        self, readings: Sequence[LossReading], outlooks: Sequence[Sequence[Outlook]], *, kept: bool
    ) -> list[list[tuple[float, ...]]]:
        rows = torch.stack(
            [
                _row(each.inputs, horizon)
                for row in outlooks
                for each, horizon in zip(row, self.config.horizons, strict=True)
            ]
        )
        answers = iter(self.ensemble.predict(self._standard(rows)).mT.tolist())
        corrections = []
        for reading in readings:
            row = []
            for trust in self.trusts:
                found: list[float] = next(answers)
                row.append(tuple(trust.share * each for each in found))
                if kept:
                    trust.waiting[reading.update] = math.fsum(found) / len(found)
            corrections.append(row)
        return corrections

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return super().state_dict() | {
            "observed": self.observed,
            "trusts": [attrs.asdict(trust) for trust in self.trusts],
            "ensemble": self.ensemble.optimizer.state_dict(),
            **{name: getattr(self, name).clone() for name in _HELD},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self.observed = state["observed"]
        self.trusts = [Trust(**saved) for saved in state["trusts"]]
        self.ensemble.optimizer.load_state_dict(state["ensemble"])
        for name in _HELD:
            getattr(self, name).copy_(state[name])


_HELD = ("rows", "targets", "centre", "scale")


def _row(inputs: torch.Tensor, horizon: int) -> torch.Tensor:
    return torch.cat([inputs.new_tensor([math.log(horizon)]), inputs]).float()
