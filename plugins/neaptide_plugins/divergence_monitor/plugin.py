"""The plugin: runs the monitor, and limits jumps or rolls back according to the alarm level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import FULL, Outcome, Plugin, hookimpl

from .alarm import Alarm, AlarmLevel
from .config import DivergenceMonitorConfig
from .monitor import AlarmMonitor
from .rollback import Rollback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


@attrs.define(eq=False)
class DivergenceMonitor(Plugin[DivergenceMonitorConfig]):
    """Checks each update in the run's history once, and each skipped update after its step."""

    _watch: AlarmMonitor = attrs.field(init=False)
    _rollback: Rollback | None = attrs.field(init=False, default=None)
    _log: Any = attrs.field(init=False, default=None)
    _step: int = attrs.field(init=False, default=0)

    @_watch.default
    def _begin(self) -> AlarmMonitor:
        return AlarmMonitor(self.config)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Set up the log. If `recovery` is `rollback`, also set up the snapshots."""
        self._log = run.log
        if self.config.recovery == "rollback":
            self._rollback = Rollback(model, store)

    @hookimpl(tryfirst=True)
    def select_phase(self, history: History, schedule: PhaseSchedule) -> Phase | None:
        """Check the new updates. At level warning or critical, choose Full instead of Predict."""
        changes = self._watch.read(history.updates, history.losses, history.gradient_norms)
        self._tell(changes, self._step + 1)
        return FULL if self._falls_back() and schedule.due().applies_prediction else None

    @hookimpl
    def after_step(self, step: int, result: StepResult) -> None:
        """Check a skipped update, because the history does not contain it."""
        self._step = step
        if result.outcome is Outcome.SKIPPED:
            self._tell(self._watch.skipped(), step)

    def _tell(self, changes: Iterable[Change], step: int) -> None:
        for change in changes:
            log = self._log.warning if change.level >= AlarmLevel.WARNING else self._log.info
            log(
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
                return None
            if self._watch.level is AlarmLevel.CAUTION:
                horizon = max(1, int(horizon * self.config.shorten))
            return following(horizon=horizon, **arguments)

        return shortened

    @hookimpl
    def around_train_step(self) -> AroundTrainStep | None:
        """At level normal take snapshots. At level critical restore a snapshot before the step."""
        if self.config.recovery != "rollback":
            return None

        def recovered(following: Callable[..., Any], **arguments: Any) -> Any:
            assert self._rollback is not None, "set when the run starts"
            watch = self._watch
            if watch.level is AlarmLevel.NORMAL:
                self._rollback.keep_every(self.config.snapshot_every, watch.seen)
            elif watch.level is AlarmLevel.CRITICAL and self._rollback.restore():
                watch.forget()
                to = self._rollback.at
                self._log.warning("divergence.rollback", step=self._step + 1, to_update=to)
            return following(**arguments)

        return recovered

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
            "alarm": [int(watch.level), watch.alarm.quiet],
            "watch": {"seen": watch.seen, "since": watch.since, "findings": watch.findings},
            "rollback": {} if self._rollback is None else self._rollback.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._step = state["step"]
        level, quiet = state["alarm"]
        self._watch = AlarmMonitor(self.config, Alarm(AlarmLevel(level), quiet), **state["watch"])
        if self._rollback is not None and state["rollback"]:
            self._rollback.load_state_dict(state["rollback"])
