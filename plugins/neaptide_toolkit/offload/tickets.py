"""Tickets: handles of copies that a lane was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from neaptide.text import called

Listener = Callable[[str, str, float, float], None]
"""`listener(lane, what, start, end)`; `start` and `end` are values of `time.perf_counter`, in
seconds."""


class Ticket(Protocol):
    """A handle of submitted work."""

    def wait(self) -> None:
        """Make all computation issued after this call wait until the ticket's work is done."""

    def finish(self) -> None:
        """Block the host until the ticket's work is done; raise the work's error, if any."""


class Done:
    """A ticket of finished work."""

    def __repr__(self) -> str:
        return called(self)

    def wait(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Return at once."""


DONE = Done()
