"""`neaptide doctor`: examine machine and installation, and advise on problems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from neaptide.api.records import LEVELS
from neaptide.cli.output import AsJson, print_json, print_text
from neaptide.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .report import Report

_COLOURS: dict[str, str] = {
    "title": "bold",
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "error": "bold red",
}
_LEVEL_WIDTH = max(map(len, LEVELS))


def doctor(
    *,
    directory: Annotated[
        Path, Parameter(name="--dir", help="Directory of runs; its disk is examined.")
    ] = Path("runs"),
    disk: Annotated[bool, Parameter(help="Measure the disk's speed, for about a second.")] = True,
    json: AsJson = False,
) -> int:
    """Examine machine, installation and plugins. The exit code is 1 if there is an error."""
    from .examine import examine  # noqa: PLC0415 - the other verbs do not need it

    report = examine(directory, trial=disk)
    if json:
        print_json(report.structured())
    elif sys.stdout.isatty():
        _print_coloured(report)
    else:
        print_text("\n".join(text for _, text in _lines(report)))
    return report.exit_code


def _lines(report: Report) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield lines. Each has a style and the number of leading characters with this style."""
    every = [found for part in report.sections for found in part.findings]
    width = max(len(found.what) for found in every)
    for part in report.sections:
        yield ("title", len(part.title)), part.title
        for found in part.findings:
            head = f"  {found.level.ljust(_LEVEL_WIDTH)}  {found.what.ljust(width)}"
            yield (found.level, 2 + _LEVEL_WIDTH), f"{head}  {found.detail}"
            if found.advice is not None:
                yield (found.level, 0), f"{' ' * len(head)}  -> {found.advice}"
        yield ("title", 0), ""
    yield (report.level, len(report.verdict)), report.verdict


def _print_coloured(report: Report) -> None:
    from rich.console import Console  # noqa: PLC0415 - pipes and files do not need it
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    for (style, length), text in _lines(report):
        line = Text(visible(text))
        line.stylize(_COLOURS[style], 0, length)
        console.print(line, soft_wrap=True)
