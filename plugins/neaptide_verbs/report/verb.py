"""`neaptide report`: a report of a run in the terminal and as an HTML page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from neaptide.cli.output import AsJson, print_json, print_text
from neaptide.errors import ConfigError, RunDirectoryError
from neaptide.io.folder import replace_file
from neaptide.text import visible

_PAGE = "report.html"


def report(
    run: Path,
    /,
    *others: Path,
    output: Annotated[
        Path | None,
        Parameter(
            help="Path of the page; by default RUN/report.html, or ./report.html for several runs."
        ),
    ] = None,
    html: Annotated[bool, Parameter(negative="--no-html", help="Write the page.")] = True,
    json: AsJson = False,
) -> None:
    """Report on a run directory in any state, or compare several run directories.

    Prints a summary and writes a self-contained HTML page.
    """
    if output is not None and not html:
        msg = f"--output {output} asks for a page and --no-html forbids one; give one of them"
        raise ConfigError(msg)
    from .comparison import (  # noqa: PLC0415 - the other verbs do not need it
        comparison_json,
        comparison_page,
        comparison_summary,
    )
    from .facts import as_json  # noqa: PLC0415 - likewise
    from .reading import read_run  # noqa: PLC0415 - likewise
    from .single import run_page  # noqa: PLC0415 - likewise
    from .summary import run_summary  # noqa: PLC0415 - likewise

    runs = [read_run(path) for path in (run, *others)]
    several = len(runs) > 1
    written = None
    if html:
        default = Path(_PAGE) if several else run / _PAGE
        page = comparison_page(runs) if several else run_page(runs[0])
        written = _write(output or default, page)
    if json:
        found = comparison_json(runs) if several else as_json(runs[0])
        print_json({**found, "page": str(written) if written else None})
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = (
        comparison_summary(runs, colour=colour) if several else run_summary(runs[0], colour=colour)
    )
    _print(f"{text}\n\npage: {visible(str(written), kept='')}" if written else text)


def _print(text: str) -> None:
    # Characters that the terminal cannot encode are escaped.
    encoding = sys.stdout.encoding or "utf-8"
    print_text(text.encode(encoding, "backslashreplace").decode(encoding), safe=True)


def _write(path: Path, page: str) -> Path:
    if path.is_dir():
        path /= _PAGE
    try:
        replace_file(path, page.encode())
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; give --output PATH or --no-html"
        raise RunDirectoryError(msg) from error
    return path
