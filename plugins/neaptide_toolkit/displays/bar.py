"""The display of a run in a Jupyter notebook: one output with a bar that changes in place.

The display needs no widgets. Each update replaces the HTML of the output. A viewer without HTML
shows plain text. The saved notebook keeps the last output.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from IPython.display import display

from neaptide_toolkit.pages.colours import COLOURS

from .figures import evaluation, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide.api.steps import StepResult
    from neaptide.loop.state import TrainState

    from .figures import Figures

_EVERY = 0.1
"""Minimum number of seconds between two updates of the bar; an update is a message to the browser.
"""
_LINES = 5
"""Number of the newest jumps and evaluations that are shown below the bar."""


@contextmanager
def bar(figures: Figures) -> Iterator[Bar]:
    """Yield the display, and draw the last step when the context ends."""
    shown = Bar(figures)
    try:
        yield shown
    finally:
        shown.draw()


class Bar:
    """The display: updates the output after steps and evaluations."""

    leaves_weights = True

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._phase, self._step, self._text = "", 0, "waiting for the first update"
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._drawn = time.perf_counter()
        self._handle: Any = display(self._bundle(), raw=True, display_id=True)

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step."""
        self._figures.take(result, state)
        if result.jump is not None:
            self._lines.append(f"step {result.step}  {verdict(result)}")
        self._phase, self._step = result.phase.name, result.step
        self._text = self._figures.text(result, state)
        self._draw_if_due()

    def evaluated(self, step: int, loss: float) -> None:
        """Show an evaluation."""
        self._lines.append(f"step {step}  {evaluation(loss)}")
        self._draw_if_due()

    def _draw_if_due(self) -> None:
        if time.perf_counter() - self._drawn >= _EVERY:
            self.draw()

    def draw(self) -> None:
        """Replace the output by the figures of the newest step."""
        self._drawn = time.perf_counter()
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        total = self._figures.total
        colour = COLOURS.get(self._phase)
        accent = f"accent-color: {colour.light}" if colour else ""
        lines = [f"{self._phase:<7}  {self._step}/{total}  {self._text}".strip(), *self._lines]
        first, *others = map(escape, lines)
        return {
            "text/plain": "\n".join(lines),
            "text/html": (
                f'<div><progress value="{self._step}" max="{total}" style="{accent}"></progress>'
                f'<pre style="margin: 0; white-space: pre-wrap">{first}</pre>'
                f'<pre style="margin: 0; opacity: 0.7">{chr(10).join(others)}</pre></div>'
            ),
        }
