"""The hooks that all plugins `dynamics-*` have: losses go in, forecasts come out."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs

from neaptide import ROLLBACK, Forecast, Plugin, hookimpl
from neaptide_toolkit.predictors.learning_rate import rate_factor

from .horizon import usable
from .settings import ForecastSettings

if TYPE_CHECKING:
    from neaptide import Ledger, Phase, PhaseSchedule, Run
    from neaptide.api.history import History
    from neaptide_toolkit.predictors.learning_rate import RateFactor

    from .forecaster import Forecaster

C = TypeVar("C", bound=ForecastSettings)


@attrs.define(eq=False)
class DynamicsPlugin(Plugin[C]):
    """Learns from each update when the history contains the update. A subclass has a forecaster."""

    title: ClassVar[str]
    """The plugin's name, such as `"dynamics-linear"`."""
    _forecaster: Forecaster[C] = attrs.field(init=False)
    _rise: float = attrs.field(init=False, default=0.0)
    _log: Any = attrs.field(init=False, default=None)
    _broken: bool = attrs.field(init=False, default=False)
    _undone: bool = attrs.field(init=False, default=False)
    """True from a rollback until the next look at the history."""

    @abstractmethod
    def _new(self, factor: RateFactor, steps: int, seed: int) -> Forecaster[C]:
        """Return a forecaster; `factor`, `steps` as in `Forecaster`, `seed` of the run."""

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Create the forecaster, and read how far the guard lets the loss rise in a jump."""
        factor = rate_factor(run.stash)
        self._forecaster = self._new(factor, run.config.train.steps, run.config.seed)
        self._rise = run.config.phases.predict.rise
        self._log = run.log
        run.stash.on_set(ROLLBACK, self._note_rollback)
        event = f"{self.title}.started"
        run.log.info(event, horizons=list(self.config.horizons))

    def _note_rollback(self) -> None:
        self._undone = True

    @hookimpl(tryfirst=True)
    def select_phase(self, history: History, schedule: PhaseSchedule) -> Phase | None:
        """Pass the new losses to the forecaster. Return None, so other plugins choose the phase."""
        del schedule
        self._take(history)
        return None

    def _take(self, history: History) -> None:
        if self._undone:
            self._undone = False
            self._begin(history.updates + 1)  # the newest undone update may not be recorded yet
        losses, new = history.losses, max(0, history.updates - self._forecaster.seen)
        if new > len(losses):  # the history no longer has the losses of some updates
            self._begin(history.updates - len(losses))
            new = len(losses)
        for loss in losses[len(losses) - new :]:
            self._forecaster.take(loss)
            if not self._broken and not usable(loss):
                self._broken = True
                event = f"{self.title}.not-finite"
                self._log.info(event, update=history.updates, loss=loss)

    def _begin(self, updates: int) -> None:
        """Forget everything, and learn from the updates after the first `updates` updates."""
        self._forecaster = self._forecaster.anew()
        self._forecaster.begin(updates)

    @hookimpl
    def forecast(self, history: History, horizon: int) -> Forecast | None:
        """Return the expected mean loss around the horizon, and a confidence.

        The confidence is the probability that this loss is at most the limit of the guard.
        If the horizon is beyond the longest configured horizon, return the forecast of the longest
        configured horizon. Return None while forecasts are no better than the baseline (the
        forecast that the loss does not change).
        """
        self._take(history)
        outcome = self._forecaster.forecast(min(horizon, self.config.horizons[-1]))
        if outcome is None:
            return None
        limit = outcome.now + self._rise * abs(outcome.now)
        return Forecast(outcome.loss, outcome.probability_below(limit))

    @hookimpl
    def estimate_memory(self, ledger: Ledger) -> Ledger:
        """Add the tensors of what learns, and the samples whose targets are not known yet."""
        return ledger.add(self.title, "dynamics", "host", self._forecaster.bytes)

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return two numbers per horizon: the skill, and `consulted`: 1 if forecasts are used."""
        forecaster = self._forecaster
        metrics = {f"skill_{each.horizon}": each.skill for each in forecaster.models}
        for each in forecaster.models:
            metrics[f"consulted_{each.horizon}"] = float(forecaster.consulted(each))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the forecaster's state."""
        return {
            "forecaster": self._forecaster.state_dict(),
            "broken": self._broken,
            "undone": self._undone,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._forecaster.load_state_dict(state["forecaster"])
        self._broken, self._undone = state["broken"], state["undone"]
