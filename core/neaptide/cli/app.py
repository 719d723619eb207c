"""Puts the verbs together and turns errors into one line and an exit code."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError
from rich.console import Console

from neaptide.checkpoint.manifest import installed_version
from neaptide.errors import ConfigError, NeaptideError, is_out_of_memory
from neaptide.io.logging import StderrHandler
from neaptide.io.streams import open_missing
from neaptide.plugin import shipped
from neaptide.run.signals import Interrupted

from .output import print_text
from .run import run
from .verbs import GROUP, add_verbs

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
_USAGE, _OUT_OF_MEMORY, _INTERRUPTED = 2, 4, 130


def build_app(given: Sequence[str] = ()) -> App:
    """Return the application: `run`, and the verbs shipped that `given` can mean."""
    app = App(
        name="neaptide",
        help=_HELP,
        version=installed_version,
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` says what it interrupted
    )
    app.command(run)
    add_verbs(app, given)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    0 ok, 2 bad usage or config, 3 does not fit, 4 out of memory, 5 diverged, 130 and 143 saved on
    a signal, 1 anything else.
    """
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
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence
        text, code = _explained(error)
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)  # as asked for: no fault
        for line in text.splitlines():
            sys.stderr.write(f"{line}\n" if stopped else f"error: {line}\n")
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"note: {_one_line(note)}\n")
        if "--json" in given:
            key = "stopped" if stopped else "error"
            print_text(json.dumps({key: text, "exit_code": code}))
        return code
    return result if isinstance(result, int) else 0


def _refuse_empty(given: Sequence[str]) -> None:
    if "" in given:
        msg = "one of the arguments is empty (a variable that is not set?)"
        raise ConfigError(msg)


def _explained(error: BaseException) -> tuple[str, int]:
    """Return what to print of an error, and the exit code.

    The traceback of an exception out of a user's or a plugin's code is printed first.
    """
    if isinstance(error, NeaptideError):
        return str(error), error.exit_code
    text = _one_line(str(error))
    if isinstance(error, CycloptsError):
        missing = "its metadata, which names the verbs, is missing; pip install neaptide"
        way_out = "see neaptide --help" if shipped(GROUP) else missing
        return f"{text.rstrip(' .,')}; {way_out}", _USAGE
    if isinstance(error, KeyboardInterrupt):
        return "interrupted while no update was under way", _INTERRUPTED
    if is_out_of_memory(error):
        text = f"out of memory: {text or 'the host has no more'}"
        advice = "lower train.batch_size, or enable a plugin that saves memory"
        return f"{text}; {advice}", _OUT_OF_MEMORY
    traceback.print_exception(error)
    return f"{type(error).__name__}: {text}", 1


def _one_line(text: str) -> str:
    return " ".join(text.split())
