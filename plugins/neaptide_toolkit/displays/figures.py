"""The figures of a run as text: loss, used and available memory, time per step, remaining time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.io.units import UNITS, duration, size
from neaptide.text import one_line

if TYPE_CHECKING:
    from neaptide.api.history import History
    from neaptide.api.memory import MemorySample
    from neaptide.api.steps import StepResult
    from neaptide.loop.state import TrainState

_SMOOTHING = 0.9


@attrs.frozen
class Budget:
    """The memory that a run may use, in bytes; None if unknown."""

    host: int | None = None
    """The smaller of the machine's memory and the cgroup's limit."""
    device: int | None = None
    """All memory of the accelerator."""


def budget_of(device: Any) -> Budget:
    """Return the budget of this machine and a torch device; None means no device."""
    from neaptide_toolkit.machine import facts as machine  # noqa: PLC0415 - verbs that show no progress start faster

    total = None
    if device is not None:
        from neaptide_toolkit.machine.devices import total_bytes  # noqa: PLC0415 - imports torch

        total = total_bytes(device)
    return Budget(machine.memory().limit, total)


@attrs.define(eq=False)
class Figures:
    """The figures of a run that a display shows after each step."""

    total: int
    """Updates in the whole run."""
    budget: Budget = attrs.field(factory=Budget)
    _loss: float | None = attrs.field(init=False, default=None)
    _averaged: int = attrs.field(init=False, default=0)  # number of updates averaged
    _began: tuple[int, float] | None = attrs.field(init=False, default=None)

    __repr__ = one_line

    def take(self, step: int, history: History) -> None:
        """Count a step. Store the newest loss that has been copied to the host."""
        if self._began is None:
            self._began = (step, time.perf_counter())
        if history.updates == self._averaged:
            return
        self._averaged = history.updates
        newest = history.losses[-1]
        # A loss that is not finite is shown; the average restarts with the next loss.
        old = newest if self._loss is None or not math.isfinite(self._loss) else self._loss
        self._loss = _SMOOTHING * old + (1.0 - _SMOOTHING) * newest

    def text(self, result: StepResult, state: TrainState) -> str:
        """Return the figures after a step in one line; `-` stands for a figure not known yet."""
        times = state.history.seconds
        pace = duration(sum(times) / len(times)) if times else "-"
        parts = (
            f"loss {'-' if self._loss is None else f'{self._loss:.4f}'}",
            self._memory(result.memory),
            f"skipped {state.backward_skipped:.1%}",
            f"jumps {state.jumps}",
            f"{pace}/step",
            f"{self._left(state.step)} left",
        )
        return "  ".join(part for part in parts if part)

    def _left(self, step: int) -> str:
        if self._began is None or step == self._began[0]:
            return "-"
        first, began = self._began
        return duration((time.perf_counter() - began) / (step - first) * (self.total - step))

    def _memory(self, memory: MemorySample | None) -> str:
        if memory is None:
            return ""
        host = f"host {_size_of(memory.host_bytes, self.budget.host)}"
        if memory.device_bytes is None:
            return host
        return f"device {_size_of(memory.device_bytes, self.budget.device)}, {host}"


def _size_of(nbytes: float, limit: float | None) -> str:
    """Return bytes and a limit as text, both in the unit of the limit: `0.42/23.5 GiB`."""
    if limit is None:
        return size(nbytes)
    whole = size(limit)
    return f"{nbytes / 1024 ** UNITS.index(whole.split()[1]):.2f}/{whole}"


def evaluation(loss: float) -> str:
    """Return the text that reports an evaluation."""
    return f"validation loss {loss:.4f}"


def verdict(result: StepResult) -> str:
    """Return the text about the jump (the predicted update) that was made before a step."""
    jump = result.jump
    assert jump is not None, "asked for a step with a jump"
    if jump.accepted:
        return f"jump over {jump.horizon} updates accepted"
    return f"jump over {jump.horizon} updates refused: {jump.reason}"
