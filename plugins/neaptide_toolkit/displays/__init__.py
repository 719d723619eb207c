"""Displays of a run: a bar in a notebook, a line that moves on a terminal, plain lines elsewhere.

`in_notebook` and `on_stream` are entry points of the group `neaptide.displays`.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from neaptide.io.streams import Tolerant

from .figures import Budget, Figures, budget_of
from .lines import Plain, Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from neaptide.config import RunConfig
    from neaptide.config.schema import RunSection
    from neaptide.run.displays import Display

__all__ = ["Budget", "Figures", "budget_of", "in_notebook", "on_stream", "progress"]


@contextmanager
def progress(
    config: RunConfig, *, style: str, stream: IO[str], device: Any = None
) -> Iterator[Display]:
    """Yield the display of a run on a stream, and remove the display when the context ends.

    Args:
        config: the run's config.
        style: `auto` (a live line on a terminal, else plain lines), `plain` or `quiet`. With
            TERM=dumb, `auto` is plain; with NO_COLOR the live line has no colours.
        stream: where to write. If writing fails, the display stops and the run continues.
        device: the torch device of the run; the display shows the device's used and total memory.
    """
    if style == "quiet":
        yield Quiet()
        return
    figures = Figures(config.train.steps, budget_of(device))
    tolerant = Tolerant(stream)
    if config.run.dir is not None:
        tolerant.write(f"{_saves(config.run)}\n")
    if style == "auto" and stream.isatty() and os.environ.get("TERM") != "dumb":
        from .live import live  # noqa: PLC0415 - other displays start faster without it

        with live(figures, tolerant) as shown:
            yield shown
    else:
        yield Plain(figures, config.run.log_every, tolerant)


def _saves(run: RunSection) -> str:
    """Return the line that says when the run saves."""
    if run.checkpoint_every:
        when = f"every {run.checkpoint_every} updates (run.checkpoint_every), "
    elif run.checkpoint_minutes:
        when = f"every {run.checkpoint_minutes:g} min (run.checkpoint_minutes), "
    else:
        when = ""
    return f"checkpoints: {when}on Ctrl-C and at the end"


def on_stream(
    *, config: RunConfig, style: str, stream: IO[str] | None, device: Any
) -> AbstractContextManager[Display] | None:
    """Return the display on `stream`; None if `stream` is None."""
    if stream is None:
        return None
    return progress(config, style=style, stream=stream, device=device)


def in_notebook(
    *, config: RunConfig, style: str, stream: IO[str] | None, device: Any
) -> AbstractContextManager[Display] | None:
    """Return the bar for a Jupyter notebook; None elsewhere, or if the style is not `auto`."""
    del stream  # the bar is shown as the cell's output
    if style != "auto" or not _is_notebook():
        return None
    from .bar import bar  # noqa: PLC0415 - imports IPython, which only a notebook needs

    return bar(Figures(config.train.steps, budget_of(device)))


def _is_notebook() -> bool:
    """Return whether this process is a Jupyter kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
