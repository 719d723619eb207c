"""The display of a run on a terminal: one line that changes in place, a bar in the phase's colour.

Each jump (predicted update) and each evaluation prints a permanent line above the bar.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from neaptide_toolkit.pages.colours import COLOURS

from .figures import evaluation, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neaptide.api.steps import StepResult
    from neaptide.io.streams import Tolerant
    from neaptide.loop.state import TrainState

    from .figures import Figures

_WIDEST, _NARROWEST = 20, 4  # of the bar
_GAP = "  "
_FREE = 3
"""Columns at the right edge that stay free. There a terminal shows `^C` after Ctrl-C; in the next
row it would push the line up, and the line would be shown twice."""
_FIRST = ("loss", "left", "tokens", "pace", "lr")
"""The figures that have room before the bar, the most important first."""
_LATER = ("jumps", "skipped", "pace", "memory")
"""The figures that have room after a bar of the smallest width."""


@contextmanager
def live(figures: Figures, stream: Tolerant) -> Iterator[Live]:
    """Yield the display. It is drawn on a terminal until the context ends."""
    console = Console(file=cast("IO[str]", stream))
    with Progress(
        _Line(console),
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
            figures={"loss": "waiting for the first update"},
        )
        yield Live(figures, bar, task)


class Live:
    """The display: updates the line after each step."""

    leaves_weights = True

    def __init__(self, figures: Figures, bar: Progress, task: TaskID) -> None:
        self._figures = figures
        self._bar = bar
        self._task = task

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step."""
        self._figures.take(result, state)
        if result.jump is not None:
            self._line(result.step, verdict(result))
        colour = COLOURS.get(result.phase.name)
        self._bar.update(
            self._task,
            completed=result.step,
            phase=result.phase.name,
            colour=colour.terminal if colour else "white",
            figures=self._figures.known(result, state),
        )

    def evaluated(self, step: int, loss: float) -> None:
        """Print a line above the bar about an evaluation."""
        self._line(step, evaluation(loss))

    def _line(self, step: int, text: str) -> None:
        self._bar.console.print(f"step {step}  {text}", highlight=False, markup=False)


class _Line(ProgressColumn):
    """The whole line. What has no room in the terminal's present width is left out."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        phase, colour, total = (
            task.fields["phase"],
            task.fields["colour"],
            str(int(task.total or 0)),
        )
        room = max(1, self._console.width - _FREE)
        place = f"{int(task.completed):>{len(total)}}/{total}"
        figures: Mapping[str, str] = task.fields["figures"]
        start = f"{phase:<7} "
        shown = fitting(figures, room - len(start) - len(place))
        used = sum(map(len, (start, place, *shown))) + len(_GAP) * len(shown)
        width = min(_WIDEST, room - used - 1)
        line = Text(no_wrap=True, overflow="crop")
        line.append(start, colour)
        if width >= _NARROWEST:
            done = round(width * task.completed / max(1, int(total)))
            line.append("━" * done, colour).append("━" * (width - done), "bright_black")
            line.append(" ")
        line.append(_GAP.join((place, *shown)))
        line.truncate(room)
        return line


def fitting(figures: Mapping[str, str], room: int) -> list[str]:
    """Return the figures for which a line has room, in their order; `room` is in characters.

    The pace (time per step) is left out if the speed in tokens is shown.
    """
    chosen: set[str] = set()
    first = [name for name in _FIRST if name != "pace" or "tokens" not in figures]
    for names, kept in ((first, 0), (_LATER, _NARROWEST + 1)):
        for name in names:
            needed = len(figures.get(name, "")) + len(_GAP)
            if name in figures and name not in chosen and needed + kept <= room:
                chosen.add(name)
                room -= needed
    return [text for name, text in figures.items() if name in chosen]
