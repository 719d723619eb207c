"""Parts that all verbs share: common options and functions that print JSON, text and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from neaptide.config import presets
from neaptide.errors import NeaptideError
from neaptide.io.jsonable import jsonable
from neaptide.io.streams import Tolerant, discard
from neaptide.text import one_line, table, visible


@attrs.frozen
class Offers:
    """Annotation of a parameter: values that the shell suggests. Other values are valid, too."""

    words: Callable[[], Iterable[str]]

    __repr__ = one_line


AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Preset = Annotated[
    str | None,
    Parameter(help="Start from a preset; see `neaptide presets list`."),
    Offers(presets.names),
]
Sets = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Change one setting: `--set train.steps=100`."),
]


def print_json(value: Any) -> None:
    """Print one JSON document; non-finite numbers become strings."""
    print_text(json.dumps(jsonable(value), indent=2))


def print_text(text: str, *, safe: bool = False) -> None:
    """Print text and end it with a newline; raise NeaptideError if that fails.

    What a terminal would obey is escaped, unless the text is `safe`: then it may have colours.
    """
    text = text if safe else visible(text)
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):  # the reading process, such as `| head`, has ended
            raise SystemExit(1) from None
        msg = f"cannot write the output: {error.strerror}"
        raise NeaptideError(msg) from error


def print_note(text: str) -> None:
    """Print a line to stderr, unless it is closed. What a terminal would obey is escaped."""
    stream = Tolerant(sys.stderr)
    stream.write(f"{visible(text, kept='')}\n")
    stream.flush()


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns. Long cells wrap on a terminal; otherwise each row is one line."""
    lines = list(rows)
    if lines and sys.stdout.isatty():
        _print_grid(lines)
    elif lines:
        print_text(table(lines))


def _print_grid(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only terminals need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    for _ in rows[0][1:]:
        grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    Console().print(grid)
