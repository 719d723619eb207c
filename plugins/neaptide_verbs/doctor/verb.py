"""`neaptide doctor`: examine machine and installation, and advise on problems."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from neaptide.api.records import LEVELS
from neaptide.cli.output import AsJson, print_json, print_table, print_text
from neaptide.errors import NeaptideError
from neaptide.text import visible
from neaptide_toolkit.ranks import slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .processes import Link
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
    disk: Annotated[
        bool, Parameter(help="Measure the disk's speed, for about two seconds.")
    ] = True,
    bench: Annotated[
        bool, Parameter(negative="", help="Measure the machine's rates, which `plan` then uses.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Examine machine, installation and plugins. The exit code is 1 if there is an error.

    Under torchrun or srun the processes also compare their versions and measure the link between
    them; the first one prints.

        neaptide doctor
        torchrun --nproc-per-node 2 -m neaptide doctor

    With `--bench` only the rates are measured, for about a minute. They are stored as a profile in
    `$XDG_CACHE_HOME/neaptide`, or else in `~/.cache/neaptide`.
    """
    if bench:
        return _bench(directory, json=json)
    from .examine import examine  # noqa: PLC0415 - the other verbs do not need it

    rank, link = _met()
    if rank:
        return 0
    report = examine(directory, trial=disk, link=link)
    if json:
        print_json(report.structured())
    elif sys.stdout.isatty():
        _print_coloured(report)
    else:
        print_text("\n".join(text for _, text in _lines(report)))
    return report.exit_code


def _met() -> tuple[int, Link | None]:
    """Return the number of this process, and the link that it and others have measured."""
    if os.environ.get("WORLD_SIZE", "1") == "1" and not slurm.variables(os.environ):
        return 0, None
    from neaptide_toolkit.ranks.launching import place  # noqa: PLC0415 - imports what may be damaged

    from .processes import measured  # noqa: PLC0415 - likewise

    rank, processes = place()
    return rank, measured(rank, processes) if processes > 1 else None


def _bench(directory: Path, *, json: bool) -> int:
    """Measure this machine, store its profile, and print it."""
    from neaptide.devices import api_of  # noqa: PLC0415 - imports torch
    from neaptide.run.assembly import choose_device  # noqa: PLC0415 - likewise
    from neaptide_toolkit.machine import measuring, profiles  # noqa: PLC0415 - likewise

    from .disk import nearest  # noqa: PLC0415 - as above

    device = choose_device("auto", None)
    if device.type != "cpu" and not hasattr(api_of(device), "Event"):
        msg = f"rates are measured by events, which {device.type!r} does not have"
        raise NeaptideError(msg)
    try:
        path = measuring.store(device, nearest(directory))
    except OSError as error:
        msg = f"the rates cannot be measured or stored: {error.strerror} ({error.filename})"
        raise NeaptideError(msg) from error
    found = profiles.load(path)
    if json:
        print_json({**attrs.asdict(found), "path": str(path)})
        return 0
    when = ", ".join(f"{name} {value}" for name, value in found.measured.items())
    print_text(f"{found.name} ({when})")
    rates = attrs.asdict(found.rates)
    print_table([(name, f"{rates[name]:.3g}", found.sources[name]) for name in rates])
    print_text(f"stored in {path}; neaptide plan uses it")
    return 0


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
