"""Reads the history, moves the level, and shortens, falls back or rolls back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import FULL, Outcome, Plugin, hookimpl

from . import detect
from .config import DivergenceMonitorConfig
from .levels import Alarm, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Ledger, ParameterStore, Phase, Run, StepResult
    from neaptide.history import History
    from neaptide.parameters import Snapshot
    from neaptide.phases import PhaseSchedule

_CRITICAL_SIGMAS = 10.0


@attrs.define(eq=False)
class DivergenceMonitor(Plugin[DivergenceMonitorConfig]):
    """Sees each update once, one step late; a skipped one at once."""

    _run: Run | None = attrs.field(init=False, default=None)
    _store: ParameterStore | None = attrs.field(init=False, default=None)
    _alarm: Alarm = attrs.field(init=False, factory=Alarm)
    _seen: int = attrs.field(init=False, default=0)
    _findings: int = attrs.field(init=False, default=0)
    _rolled_back: bool = attrs.field(init=False, default=False)
    _snapshot: Snapshot | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Remember where to log and what to restore."""
        self._run, self._store = run, store
        self._keep()

    @hookimpl
    def select_phase(self, history: History, schedule: PhaseSchedule) -> Phase | None:
        """Take in the newest update, and keep to Full while it looks bad."""
        if history.updates > self._seen:
            self._seen = history.updates
            found, critical = self._look(history)
            self._move(found, critical=critical)
            if self._alarm.level is Level.NORMAL and self._seen % self.config.snapshot_every == 0:
                self._keep()
        fall_back = self.config.recovery != "log" and self._alarm.level >= Level.WARNING
        return FULL if fall_back and schedule.due().applies_prediction else None

    @hookimpl
    def after_step(self, result: StepResult) -> None:
        """A skipped update is critical, and does not wait for the history."""
        if result.outcome is Outcome.SKIPPED:
            self._move(["non-finite"], critical=True)

    def _look(self, history: History) -> tuple[list[str], bool]:
        config = self.config
        losses = history.losses[-config.window :]
        norms = history.gradient_norms[-config.window :]
        checks = {
            "loss spike": detect.loss_spike(losses, config.loss_sigma),
            "exploding gradient": bool(norms)
            and detect.exploded(norms, config.gradient_multiplier),
            "vanishing gradient": bool(norms) and detect.vanished(norms, config.vanishing),
            "oscillation": detect.oscillates(losses, config.oscillation),
        }
        critical = detect.loss_spike(losses, max(config.loss_sigma, _CRITICAL_SIGMAS))
        return [name for name, is_so in checks.items() if is_so], critical

    def _move(self, found: list[str], *, critical: bool) -> None:
        before = self._alarm.level
        self._alarm = self._alarm.after(len(found), critical=critical, calm=self.config.calm)
        self._findings += len(found)
        level = self._alarm.level
        if level is Level.NORMAL:
            self._rolled_back = False
        if level is not before:
            assert self._run is not None, "training before the run started"
            log = self._run.log.warning if level >= Level.WARNING else self._run.log.info
            log(
                "divergence.level",
                step=self._seen,
                level=level.name.lower(),
                before=before.name.lower(),
                found=", ".join(found),
            )

    @hookimpl
    def around_predict(self) -> Callable[..., Any]:
        """Shorten jumps at caution."""

        def shortened(following: Callable[..., Any], *, horizon: int, **arguments: Any) -> Any:
            if self.config.recovery != "log" and self._alarm.level is Level.CAUTION:
                horizon = max(1, int(horizon * self.config.shorten))
            return following(horizon=horizon, **arguments)

        return shortened

    @hookimpl
    def around_train_step(self) -> Callable[..., Any] | None:
        """Once in a critical episode, put the last good weights back before going on."""
        if self.config.recovery != "rollback":
            return None

        def recovered(following: Callable[..., Any], **arguments: Any) -> Any:
            if self._alarm.level is Level.CRITICAL and not self._rolled_back:
                assert self._store is not None, "training before the run started"
                assert self._run is not None, "training before the run started"
                assert self._snapshot is not None, "taken at the start"
                self._store.restore(self._snapshot)
                self._rolled_back = True
                self._run.log.warning("divergence.rollback", step=self._seen)
            return following(**arguments)

        return recovered

    def _keep(self) -> None:
        if self.config.recovery == "rollback" and self._store is not None:
            self._snapshot = self._store.snapshot(optimizer=True)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """The snapshot of weights and optimizer state, where one is kept."""
        del phase
        if self._snapshot is None:
            return ledger
        held = sum(tensor.nbytes for tensor in self._snapshot.weights.values())
        state = (self._snapshot.optimizer or {}).get("state", {})
        held += sum(
            value.nbytes
            for entries in state.values()
            for value in entries.values()
            if isinstance(value, torch.Tensor)
        )
        return ledger.add("divergence-monitor", "snapshot", "host", held)

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the level, 0 to 3, and the number of findings."""
        return {"level": float(self._alarm.level), "findings": float(self._findings)}

    def state_dict(self) -> dict[str, Any]:
        """Return the alarm, and the snapshot where one is kept."""
        snapshot = self._snapshot
        return {
            "level": int(self._alarm.level),
            "quiet": self._alarm.quiet,
            "seen": self._seen,
            "findings": self._findings,
            "rolled_back": self._rolled_back,
            "snapshot": None
            if snapshot is None
            else {"weights": snapshot.weights, "optimizer": snapshot.optimizer},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._alarm = Alarm(Level(state["level"]), state["quiet"])
        self._seen = state["seen"]
        self._findings = state["findings"]
        self._rolled_back = state["rolled_back"]
        saved = state["snapshot"]
        if saved is not None and self._snapshot is not None:
            self._snapshot = attrs.evolve(self._snapshot, **saved)
