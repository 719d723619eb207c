"""Errors for users. Each text states the problem, its place, the value and the solution."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

from neaptide.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class NeaptideError(Exception):
    """Base of all errors that a user can solve.

    The command line prints the text and exits with `exit_code`.
    """

    exit_code: ClassVar[int] = 1


class ConfigError(NeaptideError, ValueError):
    """The configuration cannot be used; `problems` has one line for each problem."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PluginError(NeaptideError):
    """A plugin cannot be found, loaded or put in order, or it returned a wrong value."""

    exit_code = 2


class RunDirectoryError(NeaptideError):
    """The run directory cannot be used. It is not writable, or another process trains in it."""

    exit_code = 2


class CheckpointError(NeaptideError):
    """A checkpoint cannot be written, is damaged, or does not belong to the run."""


class WrongCheckpointError(CheckpointError):
    """The checkpoint does not exist, or was saved with another config, model or set of plugins."""

    exit_code = 2


class DataError(NeaptideError):
    """The data is empty, has ended, or has a form that the run cannot use."""


class ModelError(NeaptideError, RuntimeError):
    """The model, or code that uses it, does something that an enabled plugin cannot support."""


class DivergedError(NeaptideError):
    """Training produced too many non-finite updates in a row."""

    exit_code = 5


class DoesNotFitError(NeaptideError):
    """The run needs more memory than the machine has. Raised before the memory is allocated."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the device or the host has no free memory."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # When host memory is exhausted, torch and oneDNN raise a plain RuntimeError.
    texts = r"DefaultCPUAllocator: can't allocate|could not create a primitive(?! descriptor)"
    return isinstance(error, kinds) or re.search(texts, text_of(error)) is not None


def ends(error: BaseException) -> bool:
    """Return whether `error` ends a process, a task or a generator, so that nobody may keep it."""
    tasks = sys.modules.get("asyncio")
    kinds = (KeyboardInterrupt, SystemExit, GeneratorExit)
    return isinstance(error, kinds if tasks is None else (*kinds, tasks.CancelledError))


def text_of(error: object) -> str:
    """Return `str(error)`. The class may be a stranger's, whose `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a stranger's code may raise anything
        return "its text cannot be read"


def described(error: BaseException) -> str:
    """Return an error's type and text as one line, `visible`."""
    text = " ".join(text_of(error).split())
    return visible(f"{type(error).__name__}: {text}".removesuffix(": "))


@contextmanager
def ended_by(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` at the end; if an error ends the context, `action`'s is a note on it."""
    try:
        yield
    except BaseException as error:
        try:
            action()
        except Exception as second:  # noqa: BLE001 - the first error says what went wrong
            error.add_note(f"after this error: {described(second)}")
        raise
    action()


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the closest of the `known` names, or an empty string."""
    close = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
