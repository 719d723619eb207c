"""Every error Neaptide raises on purpose: one line with what, where, the value and the way out."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class NeaptideError(Exception):
    """Base of all errors a user can act on; the CLI prints its text and exits with `exit_code`."""

    exit_code: ClassVar[int] = 1


class ConfigError(NeaptideError, ValueError):
    """The configuration cannot be used; `problems` lists everything found, one line each."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PluginError(NeaptideError):
    """A plugin cannot be found, loaded, ordered or trusted."""

    exit_code = 2


class RunDirectoryError(NeaptideError):
    """The run directory cannot be used: not writable, or another process trains in it."""

    exit_code = 2


class CheckpointError(NeaptideError):
    """A checkpoint cannot be written, is damaged, or is not the one to be loaded here."""


class WrongCheckpointError(CheckpointError):
    """There is no such checkpoint, or it is sound and of another config, model or plugins."""

    exit_code = 2


class DataError(NeaptideError):
    """The data ended, is empty, or does not have the form the run needs."""


class DivergedError(NeaptideError):
    """Training produced too many non-finite updates in a row."""

    exit_code = 5


class DoesNotFitError(NeaptideError):
    """What is asked for needs more memory than there is; nothing has been allocated."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the host had no memory left."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # On a CPU torch has no class of its own for it.
    return isinstance(error, kinds) or "DefaultCPUAllocator: can't allocate" in str(error)


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest of `known`, or an empty string."""
    close = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
