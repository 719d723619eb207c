"""How a broken law is told: what was tried, what came, what to change, and where to read on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.errors import NeaptideError
from neaptide.hooks.middleware import culprit
from neaptide.io.logging import said

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PAGE = "docs/testing-plugins.md"
"""Has a section for each law; the law's name is its anchor."""


class ContractError(AssertionError):
    """A plugin, or a provider, breaks a law. An error of the run is its `__cause__`.

    Args:
        subject: who breaks it, such as `"plugin 'ema'"`.
        law: the law's name.
        tried: what the law was about to do, such as `"train 8 steps"`.
        came: what was seen; of an error of the run its type, its text and the plugin's hook.
        change: what to change.
    """

    def __init__(self, subject: str, law: str, tried: str, came: str, change: str) -> None:
        super().__init__(subject, law, tried, came, change)
        self.subject, self.law = subject, law
        self.tried, self.came, self.change = tried, came, change

    @property
    def see(self) -> str:
        """The law's section in the documentation."""
        return f"{PAGE}#{self.law}"

    def __str__(self) -> str:
        return (
            f"{self.subject} breaks the law {self.law!r}\n"
            f"  tried:  {self.tried}\n"
            f"  came:   {self.came}\n"
            f"  change: {self.change}\n"
            f"  see:    {self.see}"
        )


class _BrokenError(Exception):
    """What a law saw was not what it requires."""

    def __init__(self, came: str, change: str) -> None:
        super().__init__(came, change)
        self.came, self.change = came, change


def require(holds: bool, came: str, change: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Break the law unless it `holds`, with what came instead and what to change."""
    if not holds:
        raise _BrokenError(came, change)


@attrs.define
class Attempt:
    """What a law does at the moment, and what to change where nobody knows better."""

    tried: str = "begin"
    change: str = ""

    def tries(self, what: str, change: str = "") -> None:
        """Say what follows, such as `"train 8 steps"`.

        `change` is what to do about an error in it that no hook of a plugin raised.
        """
        self.tried = what
        self.change = change or (
            "the run goes through without the plugin: find in the traceback of this error what "
            "the plugin has changed, and undo it or leave it"
        )


@contextmanager
def told_as(
    law: str, subject: str, attempt: Attempt, own: str = "", beside: Collection[str] = ()
) -> Iterator[None]:
    """Raise whatever is raised inside as a ContractError of `law`; KeyboardInterrupt passes.

    Args:
        law: the law's name.
        subject: who is checked, for the text.
        attempt: what the law does, kept up to date by the law.
        own: the name of the plugin that is checked.
        beside: the names of the plugins enabled beside it.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except _BrokenError as broken:
        raise ContractError(subject, law, attempt.tried, broken.came, broken.change) from None
    except BaseException as error:
        first = _first(error)
        came, change = _came(first), _change(first, own, beside) or attempt.change
        raise ContractError(subject, law, attempt.tried, came, change) from error


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group in which the end of a run gathers what plugins raise."""
    while isinstance(error, BaseExceptionGroup) and _where(error) is None:
        error = error.exceptions[0]
    return error


def _where(error: BaseException | None) -> re.Match[str] | None:
    """Return the core's note of the plugin and the hook, on the error or on what caused it."""
    while error is not None:
        notes = getattr(error, "__notes__", ())
        found = _RAISED_BY.search(" ".join(note for note in notes if isinstance(note, str)))
        if found is not None:
            return found
        error = error.__cause__
    return None


_ALLOCATOR = "DefaultCPUAllocator: can't allocate"
"""On a CPU torch has no class of its own for want of memory."""
_RAISED_BY = re.compile(
    r"raised by plugin '[^']*' (?:in hook '(?P<hook>\w+)'|while it was created)"
)
_CHANGES = {
    "state_dict": "let state_dict return a dict of dicts, lists, tensors, numbers, strings and "
    "None after any step, the first one included",
    "load_state_dict": "let load_state_dict take back what state_dict returned, in a plugin that "
    "has not trained yet",
    "on_run_end": "let on_run_end undo only what was done before: it runs after any number of "
    "steps, and after a run that failed",
}


def _came(error: BaseException) -> str:
    where = _where(error)
    return f"{said(error)}, {where[0]}" if where else said(error)


def _change(error: BaseException, own: str, beside: Collection[str]) -> str:
    """Return what to change by who raised the error and where; empty where that is not known."""
    # By `said`: a stranger's error may raise when it is shown.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _ALLOCATOR in said(error):
        return "take less memory, or free some and check again"
    guilty, where = culprit(error), _where(error)
    if guilty in beside:
        return f"mend plugin {guilty!r} in `beside`, or what this plugin changes for it"
    if where is not None and f"raised by plugin {own!r}" in where[0]:
        hook = where["hook"]
        if hook is None:
            return (
                "make the plugin of its config alone, whatever the settings; what needs the run "
                "belongs in on_run_start"
            )
        return _CHANGES.get(
            hook,
            f"let {hook!r} of the plugin end without this error; docs/hooks.md says what the hook "
            f"is given and may return",
        )
    if isinstance(error, NeaptideError):
        return (
            "change what the error names: in the plugin, in its manifest, or in the settings "
            "given to the check"
        )
    return ""
