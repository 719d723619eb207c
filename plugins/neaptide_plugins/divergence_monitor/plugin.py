"""The plugin: runs the monitor, and limits jumps or rolls back according to the alarm level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import DECLINED, FULL, ROLLBACK, Outcome, Plugin, hookimpl
from neaptide_toolkit.saved_form import counter

from .alarm import Alarm, AlarmLevel
from .config import DivergenceMonitorConfig
from .monitor import AlarmMonitor
from .rollback import Rollback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch import nn

    from neaptide import (
        AroundPredict,
        AroundTrainStep,
        Ledger,
        ParameterStore,
        Phase,
        PhaseSchedule,
        Run,
        StepResult,
    )
    from neaptide.api.history import History

    from .monitor import Change


_COUNTERS = ("seen", "since", "findings")


@attrs.define(eq=False)
class DivergenceMonitor(Plugin[DivergenceMonitorConfig]):
    """Checks each update in the run's history once, and each skipped update after its step."""

    _watch: AlarmMonitor = attrs.field(init=False)
    _rollback: Rollback | None = attrs.field(init=False, default=None)
    _run: Run = attrs.field(init=False)
    _step: int = attrs.field(init=False, default=0)
    _losses: Sequence[float] = attrs.field(init=False, default=())
    """The newest losses that were read."""
    _deferred: bool = attrs.field(init=False, default=False)
    """True if gradients wait for the next update: they are of the weights before a rollback."""

    @_watch.default
    def _begin(self) -> AlarmMonitor:
        return AlarmMonitor(self.config)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """If `recovery` is `rollback`, set up the snapshots."""
        self._run = run
        run.stash.on_set(ROLLBACK, self._forget)
        if self.config.recovery == "rollback":
            self._rollback = Rollback(model, store)

    @hookimpl(tryfirst=True)
    def select_phase(self, history: History, schedule: PhaseSchedule) -> Phase | None:
        """Check the new updates. At level warning or critical, choose Full instead of Predict."""
        self._losses = history.losses
        changes = self._watch.read(history.updates, self._losses, history.gradient_norms)
        self._tell(changes, self._step + 1)
        return FULL if self._falls_back() and schedule.due().applies_prediction else None

    @hookimpl
    def after_step(self, step: int, result: StepResult) -> None:
        """Check a skipped update, because the history does not contain it."""
        self._step, self._deferred = step, result.outcome is Outcome.DEFERRED
        if result.outcome is Outcome.SKIPPED:
            self._tell(self._watch.skipped(), step)

    def _tell(self, changes: Iterable[Change], step: int) -> None:
        for change in changes:
            log = self._run.log
            (log.warning if change.level >= AlarmLevel.WARNING else log.info)(
                "divergence.level",
                step=step,
                level=change.level.name.lower(),
                before=change.before.name.lower(),
                found=", ".join(change.found),
            )

    def _falls_back(self) -> bool:
        return self.config.recovery != "log" and self._watch.level >= AlarmLevel.WARNING

    @hookimpl
    def around_predict(self) -> AroundPredict | None:
        """Shorten jumps at level caution. At level warning or critical, decline every jump."""
        if self.config.recovery == "log":
            return None

        def shortened(following: Callable[..., Any], *, horizon: int, **arguments: Any) -> Any:
            if self._falls_back():
                level = self._watch.level.name.lower()
                self._run.stash.set(DECLINED, f"divergence-monitor: the level is {level}")
                return None
            if self._watch.level is AlarmLevel.CAUTION:
                horizon = max(1, int(horizon * self.config.shorten))
            return following(horizon=horizon, **arguments)

        return shortened

    @hookimpl
    def around_train_step(self) -> AroundTrainStep | None:
        """At level normal prepare snapshots. At level critical restore one before the step."""
        if self.config.recovery != "rollback":
            return None

        def recovered(following: Callable[..., Any], **arguments: Any) -> Any:
            assert self._rollback is not None, "set when the run starts"
            watch, rollback = self._watch, self._rollback
            if watch.level is AlarmLevel.NORMAL:
                rollback.prepare(self.config.snapshot_every, watch.seen)
            elif watch.level is AlarmLevel.CRITICAL and not self._deferred and rollback.restore():
                watch.forget(unread=1)
                to = rollback.at
                self._run.log.warning("divergence.rollback", step=self._step + 1, to_update=to)
                self._run.stash.set(ROLLBACK, self)
            return following(**arguments)

        return recovered

    @hookimpl
    def after_forward(self, loss: torch.Tensor) -> None:
        """Take the prepared snapshot if the loss of these weights is normal."""
        rollback = self._rollback
        if rollback is not None and rollback.prepared:
            if self._watch.is_normal(float(loss), self._losses):
                rollback.keep(self._watch.seen)
            rollback.prepared.clear()

    def _forget(self) -> None:
        """After another plugin's rollback, forget the updates, the alarm and the snapshot."""
        if self._run.stash.get(ROLLBACK) is self:
            return
        self._watch.forget(unread=2)
        self._watch.alarm = Alarm()
        if self._rollback is not None:
            self._rollback.kept = {}

    @hookimpl
    def estimate_memory(self, ledger: Ledger) -> Ledger:
        """Add the memory of the snapshot for a rollback."""
        if self._rollback is None:
            return ledger
        return ledger.add("divergence-monitor", "snapshot", "host", self._rollback.bytes())

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the alarm level, 0 to 3, and the number of findings so far."""
        return {"level": float(self._watch.level), "findings": float(self._watch.findings)}

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's state and, if there is one, the snapshot for a rollback."""
        watch = self._watch
        return {
            "step": self._step,
            "deferred": self._deferred,
            "alarm": [int(watch.level), watch.alarm.quiet],
            "watch": {name: getattr(watch, name) for name in _COUNTERS},
            "rollback": {} if self._rollback is None else self._rollback.state_dict(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ValueError for counters that are missing, or an unknown level."""
        AlarmLevel(state["alarm"][0])
        if state["watch"].keys() != {*_COUNTERS}:
            msg = f"watch must have exactly {', '.join(_COUNTERS)}"
            raise ValueError(msg)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._step, self._deferred = counter(state, "step"), state["deferred"]
        level, quiet = state["alarm"]
        watched = {name: counter(state["watch"], name) for name in _COUNTERS}
        self._watch = AlarmMonitor(self.config, Alarm(AlarmLevel(level), quiet), **watched)
        if self._rollback is not None and state["rollback"]:
            self._rollback.load_state_dict(state["rollback"])
