"""The figures of a run as text: loss, learning rate, speed, remaining time, jumps, memory."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.io.units import UNITS, duration, size
from neaptide.text import one_line

if TYPE_CHECKING:
    from neaptide.api.memory import MemorySample
    from neaptide.api.steps import StepResult
    from neaptide.loop.state import TrainState

_SMOOTHING = 0.9
_RECENT = 64
"""Number of the newest steps over which tokens per second are counted."""


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
    _recent: deque[tuple[int, float]] = attrs.field(
        init=False, repr=False, factory=lambda: deque(maxlen=_RECENT)
    )
    """Tokens and seconds of the newest steps."""

    __repr__ = one_line

    def take(self, result: StepResult, state: TrainState) -> None:
        """Count a step. Store the newest loss that has been copied to the host."""
        history = state.history
        if result.tokens:
            self._recent.append((result.tokens, result.seconds))
        if self._began is None:
            self._began = (result.step, time.perf_counter())
        if history.updates == self._averaged:
            return
        self._averaged = history.updates
        newest = history.losses[-1]
        # A loss that is not finite is shown; the average restarts with the next loss.
        old = newest if self._loss is None or not math.isfinite(self._loss) else self._loss
        self._loss = _SMOOTHING * old + (1.0 - _SMOOTHING) * newest

    def known(self, result: StepResult, state: TrainState) -> dict[str, str]:
        """Return each figure that is known after a step, by name, in the order of a line."""
        times = state.history.seconds
        figures = {
            "loss": "" if self._loss is None else f"loss {_loss_text(self._loss)}",
            "lr": "" if result.lr is None else f"lr {_rate_text(result.lr)}",
            "tokens": self._tokens(),
            "pace": f"{duration(sum(times) / len(times))}/step" if times else "",
            "left": self._left(state.step),
            "jumps": f"jumps {state.jumps}",
            "skipped": f"skipped {state.backward_skipped:.1%}",
            "memory": self._memory(result.memory),
        }
        return {name: text for name, text in figures.items() if text}

    def text(self, result: StepResult, state: TrainState) -> str:
        """Return the known figures after a step in one line."""
        return "  ".join(self.known(result, state).values())

    def _tokens(self) -> str:
        seconds = sum(seconds for _, seconds in self._recent)
        return f"{_short(sum(n for n, _ in self._recent) / seconds)} tok/s" if seconds else ""

    def _left(self, step: int) -> str:
        if self._began is None or step == self._began[0]:
            return ""
        first, began = self._began
        left = (time.perf_counter() - began) / (step - first) * (self.total - step)
        return f"{duration(left)} left"

    def _memory(self, memory: MemorySample | None) -> str:
        if memory is None:
            return ""
        host = f"host {_size_of(memory.host_bytes, self.budget.host)}"
        if memory.device_bytes is None:
            return host
        return f"device {_size_of(memory.device_bytes, self.budget.device)}, {host}"


def _loss_text(loss: float) -> str:
    """Return a loss with four decimals; with four digits if it has more than four before them."""
    return f"{loss:.4f}" if abs(loss) < 1e4 else f"{loss:.4g}"  # noqa: PLR2004 - see above


def _rate_text(rate: float) -> str:
    """Return a learning rate with three digits: `0.1`, `3e-4`, `1.23e-5`."""
    if not 0 < abs(rate) < 1e-3:  # noqa: PLR2004 - below it an exponent is shorter
        return f"{rate:.3g}"
    digits, exponent = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _short(number: float) -> str:
    """Return a positive number with three digits: `9.57`, `874`, `12.3k`, `1.20M`."""
    for scale, letter in ((1, ""), (1e3, "k"), (1e6, "M")):
        digits = max(0, 2 - int(math.log10(max(number / scale, 1))))
        text = f"{number / scale:.{digits}f}"
        if float(text) < 1000:  # noqa: PLR2004 - what rounds up to 1000 has the next letter
            return text + letter
    return f"{number / 1e9:.3g}G"


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
