"""The message and exit code of an error. Neaptide's error classes have an `exit_code`."""

from __future__ import annotations

import traceback

from cyclopts import CycloptsError

from neaptide.errors import NeaptideError, is_out_of_memory
from neaptide.plugin import shipped

from .verbs import GROUP

_USAGE, _OUT_OF_MEMORY, _INTERRUPTED, _OTHER = 2, 4, 130, 1


def explained(error: BaseException) -> tuple[str, int]:
    """Return an error's message and exit code.

    If code of the user or of a plugin raised the error, the traceback is printed first.
    """
    if isinstance(error, NeaptideError):
        return str(error), error.exit_code
    text = one_line(str(error))
    if isinstance(error, CycloptsError):
        missing = "Neaptide's metadata, which lists the verbs, is missing; pip install neaptide"
        way_out = "see neaptide --help" if shipped(GROUP) else missing
        return f"{text.rstrip(' .,')}; {way_out}", _USAGE
    if isinstance(error, KeyboardInterrupt):
        return "interrupted outside of an update", _INTERRUPTED
    if is_out_of_memory(error):
        text = f"out of memory: {text or 'the host has none left'}"
        advice = "lower train.batch_size, or enable a plugin that saves memory"
        return f"{text}; {advice}", _OUT_OF_MEMORY
    traceback.print_exception(error)
    return f"{type(error).__name__}: {text}", _OTHER


def one_line(text: str) -> str:
    """Return `text` without its line breaks."""
    return " ".join(text.split())
