"""The message and exit code of an error. Neaptide's error classes have an `exit_code`."""

from __future__ import annotations

import os
import sys
import traceback

from cyclopts import CycloptsError

from neaptide.errors import NeaptideError, described, is_out_of_memory, text_of
from neaptide.io.streams import Tolerant
from neaptide.plugin import shipped
from neaptide.text import screen

from .verbs import GROUP

_USAGE, _OUT_OF_MEMORY, _INTERRUPTED, _OTHER = 2, 4, 130, 1


def explained(error: BaseException) -> tuple[str, int]:
    """Return an error's message and exit code.

    If code of the user or of a plugin raised the error, the traceback is printed first.
    """
    text = " ".join(text_of(error).split())
    limits = {"can't start new thread": "raise ulimit -u", "Too many open files": "raise ulimit -n"}
    ways = [way for part, way in limits.items() if part in text and way not in text]
    way_out = "".join(f"; {way}" for way in ways)
    if isinstance(error, NeaptideError):
        return f"{text_of(error)}{way_out}", error.exit_code
    if isinstance(error, CycloptsError):
        missing = "Neaptide's metadata, which lists the verbs, is missing; pip install neaptide"
        advice = "see neaptide --help" if shipped(GROUP) else missing
        return f"{text.rstrip(' .,')}; {advice}", _USAGE
    if isinstance(error, KeyboardInterrupt):
        return "interrupted outside of an update", _INTERRUPTED
    if is_out_of_memory(error):
        text = f"out of memory: {text or 'the host has none left'}"
        general = "lower train.batch_size, or enable a plugin that saves memory"
        advice = getattr(error, "way_out", "") or general
        return f"{text}; {advice}", _OUT_OF_MEMORY
    if isinstance(error, FileNotFoundError) and (problem := no_directory()):
        return problem, _OTHER
    if way_out:
        return f"{described(error)}{way_out}", _OTHER
    print_traceback(error)
    if isinstance(error, SystemExit):
        # Even with code 0 nothing is finished: no verb of Neaptide ends in this way.
        return f"code of the task or of a plugin called sys.exit({error.code!r})", _OTHER
    return described(error), _OTHER


def no_directory() -> str | None:
    """Return an error text if the current directory has been deleted, else None."""
    try:
        os.getcwd()  # noqa: PTH109 - not used
    except OSError as gone:
        return f"the current directory cannot be read: {gone.strerror}; change to another directory"
    return None


def print_traceback(error: BaseException, title: str = "") -> None:
    """Print an error's traceback to stderr: its innermost calls, on less than a screen."""
    lines = traceback.format_exception(error, limit=-13)
    Tolerant(sys.stderr).write(f"{screen(title + ''.join(lines))}\n")
