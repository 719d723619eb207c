"""Errors for users; the text states what is wrong, where, the value, and the solution."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class NeaptideError(Exception):
    """Base of all errors that a user can solve; the CLI prints the text, exits with `exit_code`."""

    exit_code: ClassVar[int] = 1


class ConfigError(NeaptideError, ValueError):
    """The configuration cannot be used; `problems` has one line for each problem."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PluginError(NeaptideError):
    """A plugin cannot be found, loaded or ordered, or returned a wrong value."""

    exit_code = 2


class RunDirectoryError(NeaptideError):
    """The run directory cannot be used: not writable, or another process trains in it."""

    exit_code = 2


class CheckpointError(NeaptideError):
    """A checkpoint cannot be written, is damaged, or does not belong to the run."""


class WrongCheckpointError(CheckpointError):
    """The checkpoint does not exist, or belongs to another config, model or plugins."""

    exit_code = 2


class DataError(NeaptideError):
    """The data ended, is empty, or does not have the form the run needs."""


class DivergedError(NeaptideError):
    """Training produced too many non-finite updates in a row."""

    exit_code = 5


class DoesNotFitError(NeaptideError):
    """The run needs more memory than the machine has; raised before the memory is allocated."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the device or the host has no free memory."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # For the CPU, torch raises a plain RuntimeError.
    return isinstance(error, kinds) or "DefaultCPUAllocator: can't allocate" in str(error)


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest of the `known` names, or an empty string."""
    close = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
