"""Displays, found by entry points: what shows a run where it runs, such as in a notebook."""

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
    """Shows a run: what `fit` takes as `observe`."""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step. Reads no loss that has not reached the host."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show the mean loss on the validation data after update `step`."""


def display_of(
    config: RunConfig, style: str, device: Any, stream: IO[str] | None
) -> AbstractContextManager[Display | None]:
    """Return the first display, by name of its entry point, that can show a run here.

    Each is a function of these four, by keyword; it returns a context that gives a `Display`, or
    None where it cannot. `stream` is None where no text is wanted. Where none can, gives None.
    """
    for display in loaded(DISPLAY_GROUP):
        found: AbstractContextManager[Display] | None = display(
            config=config, style=style, device=device, stream=stream
        )
        if found is not None:
            return found
    return nullcontext()
