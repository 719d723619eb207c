"""The application: collects the verbs, and reports an error as one line and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from cyclopts import App, Argument, Token
from rich.console import Console

from neaptide.checkpoint.manifest import installed_version
from neaptide.errors import ConfigError, described, text_of
from neaptide.io.logging import StderrHandler
from neaptide.io.streams import open_missing
from neaptide.run.signals import Interrupted
from neaptide.text import brief, screen

from .exit_codes import explained, no_directory, print_traceback
from .output import print_note, print_text
from .run import run
from .verbs import add_verbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HELP = """Train models that do not fit: four phases, low memory peaks, plugins.

The first five minutes:

    neaptide doctor                     # what this machine has and lacks
    neaptide run --preset tiny-cpu      # train a small model on a CPU
    neaptide report runs/tiny-cpu       # look at it
    neaptide presets copy tiny-cpu my.toml
    neaptide config show my.toml --origin
    neaptide run my.toml --set train.steps=200

`--json` on every verb prints JSON. Exit codes: 0 ok, 2 bad usage or configuration, 3 does not fit,
4 out of memory, 5 diverged, 129, 130 and 143 saved on a signal, 1 anything else.
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
    _let_threads_sleep()
    given = list(sys.argv[1:] if arguments is None else arguments)
    handler = StderrHandler(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s: %(message)s")
    if arguments is None:  # not inside another program
        logging.captureWarnings(True)
        logging.setLogRecordFactory(_Record)
        sys.excepthook = lambda _kind, error, _trace: print_traceback(error)
        sys.unraisablehook = threading.excepthook = _show_outside
    try:
        _refuse_unusable(given)
        app = build_app(given)
        result = app(
            _read_once(app, given),
            console=Console(),
            print_error=False,
            exit_on_error=False,
            result_action="return_value",
        )
    except BaseException as error:
        if isinstance(error, SystemExit):
            left = error.code or 0
            error.code = left if isinstance(left, int) else screen(text_of(left))
            if not isinstance(left, int) or left & 0xFF:  # a failure, as it was meant
                raise
        text, code = explained(error)
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)  # the user stopped the command
        text = screen(text, 20, 0)
        for line in text.splitlines():
            print_note(line if stopped else f"error: {line}")
        for note in getattr(error, "__notes__", ())[-4:]:
            print_note(f"note: {screen(' '.join(text_of(note).split()))}")
        if "--json" in given:
            print_text(json.dumps({"stopped" if stopped else "error": text, "exit_code": code}))
        return code
    return result if isinstance(result, int) else 0


class _Record(logging.LogRecord):
    """A record whose arguments may not fit its message: `logging` would print them unescaped."""

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        try:
            return super().getMessage()
        except Exception as error:  # noqa: BLE001 - `__str__` of an argument may raise anything
            return f"{brief(self.msg, 200)} cannot be filled in ({described(error)})"


def _read_once(app: App, given: Sequence[str]) -> list[str]:
    """Return `given` with its first `--set` only; `app` gets the values of all others at once.

    cyclopts reads all later arguments for each option with a value: minutes for 3,000 options.
    """
    words = [part for word in given for part in word.split("=", word.startswith("--set="))]
    pairs = enumerate(pairwise(takewhile("--".__ne__, words)))
    sets = {at: value for at, (name, value) in pairs if name == "--set" and value[:1] != "-"}
    sets.pop(min(sets, default=0), None)
    tokens = [Token(keyword="--set", value=value) for value in sets.values()]

    def add(_app: App, _names: object, arguments: Iterable[Argument]) -> None:
        for argument in arguments:
            if tokens and any(token.keyword == "--set" for token in argument.tokens):
                argument.append(tokens[0])  # raises an error if the option takes one value
                argument.tokens += tokens[1:]

    app.config = add
    return [word for at, word in enumerate(words) if at not in sets and at - 1 not in sets]


def _show_outside(found: Any) -> None:
    """Print an error that ended a thread, or that Python ignores (`__del__`)."""
    if not isinstance(found.exc_value, SystemExit | None):
        print_traceback(found.exc_value, "an error outside of the command, which goes on:\n")


def _let_threads_sleep() -> None:
    """Let OpenMP's threads sleep while they wait, unless the user has set a policy.

    Threads that spin take the cores from the thread that they wait for, if other processes keep the
    cores busy: a step can then take 40 times as long. OpenMP reads the policy when torch is
    imported. The policy changes no bit of a result.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _refuse_unusable(given: Sequence[str]) -> None:
    if "" in given:
        msg = "an argument is empty (an unset shell variable?)"
        raise ConfigError(msg)
    if problem := no_directory():  # torch's libraries would end the process
        raise ConfigError(problem)
