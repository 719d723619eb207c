"""The display of a run on a terminal: one line that changes in place, a bar in the phase's colour.

Each jump (predicted update) and each evaluation prints a permanent line above the bar.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TaskID, TextColumn
from rich.table import Column

from neaptide_toolkit.colours import COLOURS

from .figures import evaluation, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress_bar import ProgressBar

    from neaptide.api.steps import StepResult
    from neaptide.io.streams import Tolerant
    from neaptide.loop.state import TrainState

    from .figures import Figures

_WIDEST, _NARROWEST = 20, 4


@contextmanager
def live(figures: Figures, stream: Tolerant) -> Iterator[Live]:
    """Yield the display. It is drawn on a terminal until the context ends."""
    console = Console(file=cast("IO[str]", stream))
    with Progress(
        TextColumn("[{task.fields[colour]}]{task.fields[phase]:<7}"),
        _PhaseBar(console),
        MofNCompleteColumn(),
        # On a narrow terminal the text wraps and is not cut off.
        TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=False)),
        console=console,
        # Other output to the terminal is printed above the bar; redirected output is unaffected.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(
            "",
            total=figures.total,
            colour="white",
            phase="",
            figures="waiting for the first update",
        )
        yield Live(figures, bar, task)


class Live:
    """The display: updates the line after each step."""

    def __init__(self, figures: Figures, bar: Progress, task: TaskID) -> None:
        self._figures = figures
        self._bar = bar
        self._task = task

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step."""
        self._figures.take(result.step, state.history)
        if result.jump is not None:
            self._line(result.step, verdict(result))
        colour = COLOURS.get(result.phase.name)
        self._bar.update(
            self._task,
            completed=result.step,
            phase=result.phase.name,
            colour=colour.terminal if colour else "white",
            figures=self._figures.text(result, state),
        )

    def evaluated(self, step: int, loss: float) -> None:
        """Print a line above the bar about an evaluation."""
        self._line(step, evaluation(loss))

    def _line(self, step: int, text: str) -> None:
        self._bar.console.print(f"step {step}  {text}", highlight=False, markup=False)


class _PhaseBar(BarColumn):
    """A bar in the colour of the phase; its width depends on the terminal's current width."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> ProgressBar:
        self.complete_style = self.finished_style = task.fields["colour"]
        self.bar_width = max(_NARROWEST, min(_WIDEST, self._console.width // 5))
        return super().render(task)
