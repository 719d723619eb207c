"""What a run shows while it trains: a live line on a terminal, elsewhere plain lines."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from neaptide.io.streams import Tolerant

from .figures import Budget, Figures, budget_of
from .lines import Plain, Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide.api.steps import StepResult
    from neaptide.config import RunConfig
    from neaptide.loop.state import TrainState

__all__ = ["Budget", "Figures", "Progress", "budget_of", "progress"]


class Progress(Protocol):
    """Shows a run: what `fit` takes as `observe`."""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step. Reads no loss that has not reached the host."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show the mean loss on the validation data after update `step`."""


@contextmanager
def progress(
    config: RunConfig, *, style: str, stream: IO[str], device: Any = None
) -> Iterator[Progress]:
    """Give the display of a run, and take it down at the end.

    Args:
        config: the run's config.
        style: `auto` (a live line on a terminal, else plain lines), `plain` or `quiet`. With
            TERM=dumb, `auto` is plain; with NO_COLOR the live line has no colours.
        stream: where to write. One that fails is given up; the run goes on.
        device: the torch device of the run, whose memory is shown against all it has.
    """
    if style == "quiet":
        yield Quiet()
        return
    figures = Figures(config.train.steps, budget_of(device))
    tolerant = Tolerant(stream)
    if style == "auto" and stream.isatty() and os.environ.get("TERM") != "dumb":
        from .live import live  # noqa: PLC0415 - verbs that show no progress start faster

        with live(figures, tolerant) as shown:
            yield shown
    else:
        yield Plain(figures, config.run.log_every, tolerant)
