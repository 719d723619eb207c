"""The display of a run without a terminal: plain lines, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import evaluation, verdict

if TYPE_CHECKING:
    from neaptide.api.steps import StepResult
    from neaptide.io.streams import Tolerant
    from neaptide.loop.state import TrainState

    from .figures import Figures


class Quiet:
    """A display that shows nothing."""

    leaves_weights = True

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show nothing."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show nothing."""


class Plain:
    """A display that writes a line every `every` updates.

    It also writes a line at each change of phase, each jump (predicted update) and each evaluation.
    """

    leaves_weights = True

    def __init__(self, figures: Figures, every: int, stream: Tolerant) -> None:
        self._figures = figures
        self._every = every
        self._stream = stream
        self._phase = ""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Write the lines that are due."""
        self._figures.take(result, state)
        if result.jump is not None:
            self._line(result.step, "predict", verdict(result))
        if result.phase.name != self._phase or (result.updated and result.step % self._every == 0):
            self._phase = result.phase.name
            self._line(result.step, self._phase, self._figures.text(result, state))

    def evaluated(self, step: int, loss: float) -> None:
        """Write a line about an evaluation."""
        self._line(step, self._phase, evaluation(loss))

    def _line(self, step: int, phase: str, text: str) -> None:
        width = len(str(self._figures.total))
        self._stream.write(f"step {step:>{width}}/{self._figures.total}  {phase:<7}  {text}\n")
        self._stream.flush()
