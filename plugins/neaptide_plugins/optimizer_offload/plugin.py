"""Evicts the optimizer's state in phases without updates, and brings it back before updates."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.errors import ended_by
from neaptide_toolkit.machine.devices import empty_cache
from neaptide_toolkit.offload import tensors_in
from neaptide_toolkit.optimizer_state import expected_state

from .accounting import account, expected_room
from .ahead import steps_until
from .choosing import mechanism
from .config import OptimizerOffloadConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from neaptide import (
        AroundOptimizerStep,
        Ledger,
        Outcome,
        ParameterStore,
        Phase,
        PhaseSchedule,
        Run,
        Span,
    )

    from .accounting import Room
    from .choosing import Mechanism

_NAME = "optimizer-offload"


@attrs.define(eq=False)
class OptimizerOffload(Plugin[OptimizerOffloadConfig]):
    """Evicts the optimizer's state in the phases without updates."""

    _device: torch.device = attrs.field(init=False)
    _corrects: bool = attrs.field(init=False, default=False)
    _store: ParameterStore = attrs.field(init=False)
    _spans: list[Span] = attrs.field(init=False, factory=list)
    _mechanism: Mechanism | None = attrs.field(init=False, default=None)
    _last: Room | None = attrs.field(init=False, default=None)
    """The bytes that the last eviction freed and allocated."""
    _log: Any = attrs.field(init=False, default=None)
    _told: bool = attrs.field(init=False, default=False)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Choose the mechanism for the state of the parameters on the device."""
        self._device, self._store, self._log = run.device, store, run.log
        self._corrects = run.config.phases.correct.steps > 0
        # The spans are chosen once: a plugin that evicts weights in Predict changes their tier. The
        # state of streamed weights is on the host already.
        self._spans = [span for span in store.spans() if span.tier == "device"]
        try:
            with store.compute():
                self._mechanism = mechanism(self.config.strategy, store, self._spans, run.device)
        except ValueError as error:
            msg = f"{error} @ plugins.{_NAME}.strategy"
            raise ConfigError(msg) from error
        run.log.info(f"{_NAME}.started", strategy=self.config.strategy)  # noqa: G004 - structlog's

    @hookimpl
    def on_run_end(self) -> None:
        """Bring the state back, and free the mechanism's memory."""
        if self._mechanism is not None:
            with ended_by(self._mechanism.close):
                self._bring_back()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Evict the state in a phase without updates.

        In other phases start to bring the state back.
        """
        if phase.updates_optimizer:
            self._begin()
            return
        self._send_away()
        if self.config.discard_activations:
            _discard(self._device)

    @hookimpl(tryfirst=True)
    def select_phase(self, schedule: PhaseSchedule) -> None:
        """`lookahead` steps before the next update, start to copy the state back to the device."""
        if self._mechanism is None or not self._mechanism.is_away:
            return
        steps = steps_until(schedule, _updates, self.config.lookahead)
        # During a jump the state stays evicted; `on_phase_enter` starts the copy after the jump.
        if steps is not None and not schedule.due().applies_prediction:
            self._begin()

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Bring the state back before the update."""

        def update(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            self._bring_back()
            return following(**arguments)

        return update

    @hookimpl
    def after_step(self, phase: Phase) -> None:
        """Bring the state back after a step whose update was deferred or skipped."""
        if phase.updates_optimizer:
            self._bring_back()

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Record in the memory ledger where the optimizer's state is stored in `phase`."""
        if self._mechanism is None:
            return ledger
        expected = expected_state(self._store.optimizer)
        if expected:
            parameters = [self._store.parameters[span.name] for span in self._spans]
            tensors = tensors_in([expected.get(parameter, {}) for parameter in parameters])
            room = expected_room(self.config.strategy, [each for each in tensors if each.ndim])
        else:
            room = self._mechanism.room(self._store, self._spans)
        return account(ledger, _NAME, room, phase, corrects=self._corrects)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return the bytes that the last eviction freed, and the relative error of `compress`."""
        if self._mechanism is None or self._last is None:
            return {}
        room, error = self._last, self._mechanism.error
        freed = {"freed_bytes": float(room.leaves - room.codes)}
        return freed if error is None else {**freed, "error": error}

    def report(self) -> str | None:
        """Return one line with the bytes that Predict frees."""
        room = self._last
        if room is None:
            return None
        text = f"{room.leaves - room.codes} bytes of optimizer state off the device in Predict"
        return f"{text}, {room.host} on the host instead" if room.host else text

    def _send_away(self) -> None:
        if self._mechanism is None or self._mechanism.is_away:
            return
        self._last = self._mechanism.room(self._store, self._spans)
        self._mechanism.leave(self._store, self._spans)
        if not self._told and (self._mechanism.is_away or self._mechanism.left):
            self._told = True
            for reason, nbytes in self._mechanism.left.items():
                self._log.warning(f"{_NAME}.stays", reason=reason, bytes=nbytes)
            if self._mechanism.note is not None:
                self._log.warning(f"{_NAME}.not_pinned", reason=self._mechanism.note)

    def _begin(self) -> None:
        mechanism = self._mechanism
        if mechanism is None or not mechanism.is_away or not self.config.async_restore:
            return
        try:
            mechanism.begin()
        except (
            RuntimeError,
            MemoryError,
        ) as error:  # the copy is tried again at the update
            self._log.warning(f"{_NAME}.put_off", reason=str(error).partition("\n")[0])

    def _bring_back(self) -> None:
        if self._mechanism is not None:
            self._mechanism.finish()


def _updates(phase: Phase) -> bool:
    return phase.updates_optimizer


def _discard(device: torch.device) -> None:
    """Collect reference cycles of the last steps, and empty the cache of torch's allocator."""
    gc.collect(1)
    empty_cache(device)
