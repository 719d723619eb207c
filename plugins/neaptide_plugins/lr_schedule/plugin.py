"""The plugin: sets the learning rate before each update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_toolkit.predictors.learning_rate import RATE_FACTOR
from neaptide_toolkit.saved_form import counter

from .config import LrScheduleConfig, is_shape
from .lengths import curve_of
from .rates import CurveRates, Factors, keep_peak_rates, peak_rates, write

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from neaptide import AroundPredict, AroundTrainStep, ParameterStore, Phase, Run

    from .rates import TorchRates

_WHERE = "plugins.lr-schedule"


@attrs.define(eq=False)
class LrSchedule(Plugin[LrScheduleConfig]):
    """Computes the rate from the number of updates alone, so a resume needs little state."""

    _optimizer: torch.optim.Optimizer = attrs.field(init=False)
    _steps: int = attrs.field(init=False, default=0)
    _made: int = attrs.field(init=False, default=0)
    _replaced: int = attrs.field(init=False, default=0)
    _rates: CurveRates | TorchRates | None = attrs.field(init=False, default=None)
    _factor_after: Callable[[int], float] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError before a model is built if torch does not have the class."""
        if not is_shape(self.config.name):
            from .schedulers import scheduler_class  # noqa: PLC0415 - a schedule of ours needs none

            scheduler_class(self.config.name, self.config.options)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Check the schedule against the length of the run; ConfigError if it does not fit."""
        self._optimizer, self._steps = store.optimizer, run.config.train.steps
        if any("lr" not in group for group in self._optimizer.param_groups):
            name = type(self._optimizer).__name__
            msg = f"{name} has groups without a rate 'lr'; disable the plugin @ {_WHERE}"
            raise ConfigError(msg)
        self._made_of(peak_rates(self._optimizer))
        run.stash.set(RATE_FACTOR, self._factor)

    def _made_of(self, peaks: list[Any]) -> CurveRates | TorchRates:
        if is_shape(self.config.name):
            return CurveRates(curve_of(self.config, self._steps).factor, peaks)
        return self._of_torch(peaks)

    def _of_torch(self, peaks: list[Any]) -> TorchRates:
        from .schedulers import torch_rates  # noqa: PLC0415 - as above

        return torch_rates(
            self.config.name, self.config.options, self._optimizer, peaks, self._steps
        )

    def _counted(self, updates: int) -> int:
        return updates + (self._replaced if self.config.count_jumps else 0)

    def _factor(self, updates: int) -> float:
        """Return the factor of the first group's rate, as if no more jump were accepted."""
        if self._factor_after is None:
            self._factor_after = self._factors()
        return self._factor_after(self._counted(updates))

    def _factors(self) -> Callable[[int], float]:
        if is_shape(self.config.name):
            return curve_of(self.config, self._steps).factor
        peaks = [float(peak) for peak in peak_rates(self._optimizer)]
        return Factors(self._of_torch(peaks), peaks[0]).after

    @hookimpl
    def on_phase_enter(self, previous: Phase | None, step: int) -> None:
        """Take over the number of updates; after a resume also the optimizer's peak rates."""
        self._made = step
        if previous is None:
            self._rates = self._factor_after = None

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Set the rate of every group before the first forward, as a backward may update."""

        def scheduled(following: Callable[..., Any], **arguments: Any) -> Any:
            if self._rates is None:
                self._rates = self._made_of(keep_peak_rates(self._optimizer))
            write(self._optimizer, self._rates.after(self._counted(self._made)))
            return following(**arguments)

        return scheduled

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Count the updates that accepted jumps replace."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            jump = following(**arguments)
            if jump is not None and jump.accepted:
                self._replaced += jump.horizon
            return jump

        return counted

    @hookimpl
    def after_step(self, step: int) -> None:
        """Take over the number of updates."""
        self._made = step

    def state_dict(self) -> dict[str, Any]:
        """Return how many updates jumps have replaced. The core saves the ordinary ones."""
        return {"replaced": self._replaced}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._replaced = counter(state, "replaced")
