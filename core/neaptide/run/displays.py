"""Finds the progress display for a terminal or notebook among the installed entry points."""

from __future__ import annotations

from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any, Protocol

from neaptide.plugin import loaded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from neaptide.api.steps import StepResult
    from neaptide.config import RunConfig
    from neaptide.loop.state import TrainState

DISPLAY_GROUP = "neaptide.displays"


class Display(Protocol):
    """The progress display of a run; the argument `observe` of `fit`."""

    leaves_weights: bool
    """True: it changes no weight, so plugins may keep copies of weights from step to step."""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step, without reading a loss that is still on the device."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show the mean loss on the validation data after update `step`."""


def display_of(
    config: RunConfig, style: str, device: Any, stream: IO[str] | None
) -> AbstractContextManager[Display | None]:
    """Return a context that yields the first display that can show this run, or None.

    Each entry point is a function with the keyword arguments of `display_of`. It returns a context
    that yields a display, or None if it cannot show this run. The functions are called in the order
    of the entry points' names. If `stream` is None, the display must not print text.
    """
    for display in loaded(DISPLAY_GROUP):
        found: AbstractContextManager[Display] | None = display(
            config=config, style=style, device=device, stream=stream
        )
        if found is not None:
            return found
    return nullcontext()
