"""Shows the page of `neaptide report` in a notebook, as the output of a cell."""

from __future__ import annotations

from html import escape
from pathlib import Path

import attrs

from neaptide.text import one_line


@attrs.frozen
class RunPage:
    """A report that a notebook shows as a page. `print` writes the report's summary instead."""

    runs: tuple[Path, ...]
    page: str = attrs.field(repr=False)
    """The whole HTML document."""
    summary: str = attrs.field(repr=False)
    """The text that `neaptide report` prints."""
    height: int = attrs.field(repr=False)
    """Height of the frame that shows the page, in pixels."""

    __repr__ = one_line

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        # A frame separates the style of the page from the notebook. `sandbox` forbids scripts.
        return (
            f'<iframe srcdoc="{escape(self.page)}" sandbox title="{escape(repr(self))}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def inline(run: str | Path, *others: str | Path, height: int = 600) -> RunPage:
    """Return the report of a run directory, or a comparison of several runs, for a notebook.

    If the call is the last line of a cell, the report is the cell's output. No file is written.

    Raises RunDirectoryError if a directory is not a run directory.
    """
    from .comparison import comparison_page, comparison_summary  # noqa: PLC0415 - the help does not need it
    from .reading import read_run  # noqa: PLC0415 - likewise
    from .single import run_page  # noqa: PLC0415 - likewise
    from .summary import run_summary  # noqa: PLC0415 - likewise

    paths = tuple(map(Path, (run, *others)))
    runs = [read_run(path) for path in paths]
    if others:
        return RunPage(paths, comparison_page(runs), comparison_summary(runs, colour=False), height)
    return RunPage(paths, run_page(runs[0]), run_summary(runs[0], colour=False), height)
