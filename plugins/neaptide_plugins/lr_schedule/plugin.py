"""The plugin: sets the learning rate before each update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_toolkit.saved_form import counter

from .config import DECAY, LrScheduleConfig, is_shape
from .curve import Curve, updates_of
from .rates import CurveRates, keep_peak_rates, peak_rates, write

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

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError before a model is built if torch does not have the class."""
        if not is_shape(self.config.name):
            from .schedulers import scheduler_class  # noqa: PLC0415 - a schedule of ours needs none

            scheduler_class(self.config.name, self.config.options)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Check the schedule against the length of the run; ConfigError if it does not fit."""
        section = run.config.schedule
        if section.name != "constant" or section.warmup_steps:
            key = "name" if section.name != "constant" else "warmup_steps"
            value = getattr(section, key)
            msg = (
                f"[schedule] and the plugin lr-schedule would both set the rate; leave out "
                f"[schedule] (got {value!r}) @ schedule.{key}"
            )
            raise ConfigError(msg)
        self._optimizer, self._steps = store.optimizer, run.config.train.steps
        if any("lr" not in group for group in self._optimizer.param_groups):
            name = type(self._optimizer).__name__
            msg = f"{name} has groups without a rate 'lr'; disable the plugin @ {_WHERE}"
            raise ConfigError(msg)
        self._made_of(peak_rates(self._optimizer))

    def _made_of(self, peaks: list[Any]) -> CurveRates | TorchRates:
        config = self.config
        if is_shape(config.name):
            return CurveRates(curve_of(config, self._steps).factor, peaks)
        from .schedulers import torch_rates  # noqa: PLC0415 - as above

        return torch_rates(config.name, config.options, self._optimizer, peaks, self._steps)

    @hookimpl
    def on_phase_enter(self, previous: Phase | None, step: int) -> None:
        """Take over the number of updates; after a resume also the optimizer's peak rates."""
        self._made = step
        if previous is None:
            self._rates = None

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Set the rate of every group before the first forward, as a backward may update."""

        def scheduled(following: Callable[..., Any], **arguments: Any) -> Any:
            if self._rates is None:
                self._rates = self._made_of(keep_peak_rates(self._optimizer))
            updates = self._made + (self._replaced if self.config.count_jumps else 0)
            write(self._optimizer, self._rates.after(updates))
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


def curve_of(config: LrScheduleConfig, steps: int) -> Curve:
    """Return the curve of a run of `steps` updates; ConfigError if its parts are longer."""
    warmup, is_wsd = updates_of(config.warmup, steps), config.name == "wsd"
    share = DECAY if config.decay is None else config.decay
    decay = max(1, round(share * steps)) if is_wsd else 0
    if is_wsd and config.warmup < 1 and config.warmup + share <= 1:
        decay = min(decay, steps - warmup)  # both may have been rounded up
    if warmup + decay > steps:
        parts = f"a warmup of {warmup} updates" + (f" and a decay of {decay}" if is_wsd else "")
        msg = (
            f"{parts} do not fit into train.steps = {steps} (got {config.warmup:g}) "
            f"@ {_WHERE}.warmup"
        )
        raise ConfigError(msg)
    name: Any = config.name
    return Curve(name=name, steps=steps, warmup=warmup, decay=decay, floor=config.floor)
