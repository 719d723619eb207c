"""The application: collects the verbs, and reports an error as one line and an exit code."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

from cyclopts import App
from rich.console import Console

from neaptide.checkpoint.manifest import installed_version
from neaptide.errors import ConfigError
from neaptide.io.logging import StderrHandler
from neaptide.io.streams import open_missing
from neaptide.run.signals import Interrupted

from .exit_codes import explained, one_line
from .output import print_text
from .run import run
from .verbs import add_verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """Train models that do not fit: four phases, low memory peaks, plugins.

The first five minutes:

    neaptide doctor                     # what this machine has and lacks
    neaptide run --preset tiny-cpu      # train a small model on a CPU
    neaptide report runs/tiny-cpu       # look at it
    neaptide presets copy tiny-cpu my.toml
    neaptide config show my.toml --origin
    neaptide run my.toml --set train.steps=200

`--json` on every verb prints JSON. Exit codes: 0 ok, 2 bad usage or configuration, 3 does not fit,
4 out of memory, 5 diverged, 130 and 143 saved on a signal, 1 anything else.
"""


def build_app(given: Sequence[str] = ()) -> App:
    """Return the application with `run` and the verbs that the arguments `given` may use."""
    app = App(
        name="neaptide",
        help=_HELP,
        version=installed_version,
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` reports it
    )
    app.command(run)
    add_verbs(app, given)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    open_missing()
    given = list(sys.argv[1:] if arguments is None else arguments)
    handler = StderrHandler(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s: %(message)s")
    try:
        _refuse_empty(given)
        result = build_app(given)(
            given,
            console=Console(),
            print_error=False,
            exit_on_error=False,
            result_action="return_value",
        )
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error becomes an exit code
        text, code = explained(error)
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)  # the user stopped the command
        for line in text.splitlines():
            sys.stderr.write(f"{line}\n" if stopped else f"error: {line}\n")
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"note: {one_line(note)}\n")
        if "--json" in given:
            key = "stopped" if stopped else "error"
            print_text(json.dumps({key: text, "exit_code": code}))
        return code
    return result if isinstance(result, int) else 0


def _refuse_empty(given: Sequence[str]) -> None:
    if "" in given:
        msg = "an argument is empty (an unset shell variable?)"
        raise ConfigError(msg)
