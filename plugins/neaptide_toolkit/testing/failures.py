"""The error for a broken law (a rule of the contract for plugins and providers).

The error states the attempted action, the result, the remedy and the page to read.
"""

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
"""A page with a section for each law. The anchor of a section is the law's name."""


class ContractError(AssertionError):
    """A plugin or a provider breaks a law. The `__cause__` is the run's error, if any.

    Args:
        subject: the plugin or provider, such as `"plugin 'ema'"`.
        law: the law's name.
        tried: what the law did when it failed, such as `"train 8 steps"`.
        came: the result. If the run raised an error: its type, its text and the plugin's hook.
        change: the remedy.
    """

    def __init__(self, subject: str, law: str, tried: str, came: str, change: str) -> None:
        super().__init__(subject, law, tried, came, change)
        self.subject, self.law = subject, law
        self.tried, self.came, self.change = tried, came, change

    @property
    def see(self) -> str:
        """The page and section of the documentation that describe the law."""
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
    """The result does not satisfy the law."""

    def __init__(self, came: str, change: str) -> None:
        super().__init__(came, change)
        self.came, self.change = came, change


def require(holds: bool, came: str, change: str) -> None:  # noqa: FBT001 - reads as a sentence
    """If the law does not hold, raise an error with the result `came` and the remedy `change`."""
    if not holds:
        raise _BrokenError(came, change)


@attrs.define
class Attempt:
    """What a law (a check of a plugin or provider) is doing now, and the advice if this fails."""

    tried: str = "begin"
    change: str = ""

    def tries(self, what: str, change: str = "") -> None:
        """Set the next action, such as `"train 8 steps"`.

        `change` is the remedy for an error that no plugin's hook raised.
        """
        self.tried = what
        self.change = change or (
            "the run succeeds without the plugin: find in this error's traceback what "
            "the plugin has changed, and undo that change"
        )


@contextmanager
def told_as(
    law: str, subject: str, attempt: Attempt, own: str = "", beside: Collection[str] = ()
) -> Iterator[None]:
    """Convert exceptions in the context, except KeyboardInterrupt, to a ContractError of `law`.

    Args:
        law: the law's name.
        subject: the checked plugin or provider, for the text of the error.
        attempt: what the law is doing now. The law updates this object.
        own: the checked plugin's name.
        beside: the names of the other enabled plugins.
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
    """Return the first error of a group. At its end, a run groups the errors of its plugins."""
    while isinstance(error, BaseExceptionGroup) and _where(error) is None:
        error = error.exceptions[0]
    return error


def _where(error: BaseException | None) -> re.Match[str] | None:
    """Find the note in which the core names plugin and hook, on the error or one of its causes."""
    while error is not None:
        notes = getattr(error, "__notes__", ())
        found = _RAISED_BY.search(" ".join(note for note in notes if isinstance(note, str)))
        if found is not None:
            return found
        error = error.__cause__
    return None


_ALLOCATOR = "DefaultCPUAllocator: can't allocate"
"""Text in torch's error for lack of memory on a CPU. torch has no special class for this error."""
_RAISED_BY = re.compile(
    r"raised by plugin '[^']*' (?:in hook '(?P<hook>\w+)'|while it was created)"
)
_CHANGES = {
    "state_dict": "let state_dict return a dict of dicts, lists, tensors, numbers, strings and "
    "None after any step, the first one included",
    "load_state_dict": "let load_state_dict restore the result of state_dict in a plugin that "
    "has not trained yet",
    "on_run_end": "let on_run_end undo only changes that were made: it runs after any number of "
    "steps, and after a failed run",
}


def _came(error: BaseException) -> str:
    where = _where(error)
    return f"{said(error)}, {where[0]}" if where else said(error)


def _change(error: BaseException, own: str, beside: Collection[str]) -> str:
    """Return the remedy for the plugin and hook that raised the error; empty if unknown."""
    # `said` instead of str: the `__str__` of another package's error may raise an error.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _ALLOCATOR in said(error):
        return "take less memory, or free some and check again"
    guilty, where = culprit(error), _where(error)
    if guilty in beside:
        return f"fix plugin {guilty!r} in `beside`, or what this plugin changes for it"
    if where is not None and f"raised by plugin {own!r}" in where[0]:
        hook = where["hook"]
        if hook is None:
            return (
                "create the plugin from its config alone, for any settings; code that needs the "
                "run belongs in on_run_start"
            )
        return _CHANGES.get(
            hook,
            f"mend {hook!r} of the plugin so that it raises no such error; docs/hooks.md lists "
            f"the hook's arguments and results",
        )
    if isinstance(error, NeaptideError):
        return (
            "change the cause named by the error: in the plugin, in its manifest, or in the "
            "settings given to the check"
        )
    return ""
