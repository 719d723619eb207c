"""Has the state leave where nothing is updated, and come back before anybody needs it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ConfigError, Plugin, hookimpl

from .accounting import account
from .choosing import mechanism, tensors_of
from .config import OptimizerOffloadConfig
from .state_tensors import State
from .trips import Trips

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from neaptide import Ledger, Outcome, ParameterStore, Phase, PhaseSchedule, Run

_NAME = "optimizer-offload"


@attrs.define(eq=False)
class OptimizerOffload(Plugin[OptimizerOffloadConfig]):
    """Frees the device of optimizer state in the phases that do not update."""

    _device: torch.device = attrs.field(init=False)
    _corrects: bool = attrs.field(init=False, default=False)
    _trips: Trips | None = attrs.field(init=False, default=None)
    _undo: list[Callable[[], None]] = attrs.field(init=False, factory=list)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Choose the mechanism, and hear of everybody who asks for the state."""
        self._device, optimizer = run.device, store.optimizer
        self._corrects = run.config.phases.correct.steps > 0
        # By where the store has them now: somebody may set weights aside in Predict. The state of
        # those it streams is its own business.
        on_device = {span.name for span in store.spans() if span.tier == "device"}
        parameters = [each for name, each in model.named_parameters() if name in on_device]

        def state() -> State:
            return State(optimizer, parameters, tensors_of(model), run.device)

        try:
            with store.compute():
                chosen = mechanism(self.config.strategy, state())
        except ValueError as error:
            msg = f"{error} @ plugins.{_NAME}.strategy"
            raise ConfigError(msg) from error
        run.log.info(f"{_NAME}.started", strategy=self.config.strategy)  # noqa: G004 - structlog's
        if chosen is None:
            return
        self._trips = Trips(chosen, state, store.compute, run.log)
        for register in (
            optimizer.register_step_pre_hook,
            optimizer.register_state_dict_pre_hook,
            optimizer.register_load_state_dict_pre_hook,
        ):
            self._undo.append(register(self._bring_back).remove)

    @hookimpl
    def on_run_end(self) -> None:
        """Leave the state where the run found it."""
        try:
            self._bring_back()
        finally:
            while self._undo:
                self._undo.pop()()
            if self._trips is not None:
                self._trips.mechanism.close()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Send the state away where nothing is updated, else begin to bring it back."""
        if phase.updates_optimizer:
            self._begin()
            return
        if self._trips is not None:
            self._trips.send_away()
        if self.config.discard_activations:
            _discard(self._device)

    @hookimpl(tryfirst=True)
    def select_phase(self, schedule: PhaseSchedule) -> None:
        """Look ahead: the state begins to come back some steps before it is needed."""
        if self._trips is None or not self._trips.is_away:
            return
        steps = schedule.steps_until(_updates, limit=self.config.lookahead)
        # A jump that is due still has the room; the update comes right after it.
        if steps is not None and not schedule.due().applies_prediction:
            self._begin()

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Outcome]:
        """Wait for the state where it is updated."""

        def update(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            self._bring_back()
            return following(**arguments)

        return update

    @hookimpl
    def after_step(self, phase: Phase) -> None:
        """Leave nothing under way between steps."""
        if phase.updates_optimizer:
            self._bring_back()

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Move the state to where it is in `phase`."""
        if self._trips is None:
            return ledger
        return account(ledger, _NAME, self._trips.room(), phase, corrects=self._corrects)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return the bytes freed in the last Predict, and the error of coding them."""
        if self._trips is None or self._trips.last is None:
            return {}
        room, error = self._trips.last, self._trips.mechanism.error
        freed = {"freed_bytes": float(room.leaves - room.codes)}
        return freed if error is None else {**freed, "error": error}

    def report(self) -> str | None:
        """Return what Predict has freed."""
        if self._trips is None or self._trips.last is None:
            return None
        room = self._trips.last
        text = f"{room.leaves - room.codes} bytes of optimizer state off the device in Predict"
        return f"{text}, {room.host} on the host meanwhile" if room.host else text

    def _begin(self) -> None:
        if self._trips is not None and self.config.async_restore:
            self._trips.begin()

    def _bring_back(self, *_: Any) -> None:
        if self._trips is not None:
            self._trips.bring_back()


def _updates(phase: Phase) -> bool:
    return phase.updates_optimizer


def _discard(device: torch.device) -> None:
    """Free what only reference cycles of the last steps keep, and what torch has in reserve."""
    gc.collect(1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
