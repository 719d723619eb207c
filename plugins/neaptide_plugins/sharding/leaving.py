"""How a process that has parts of the model leaves a run: not before the others need no more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from neaptide.errors import DataError
from neaptide.run.signals import Interrupted
from neaptide_toolkit.ranks.group import PeerLostError

if TYPE_CHECKING:
    from .meetings import Meetings


def leave_together(meetings: Meetings, error: BaseException | None) -> None:
    """Wait until all processes are here; until then send the rows that the first one saves.

    The first process saves after a signal and after an error of the data, too, which may be one of
    this process alone. After any other error, this process ends at once, and so ends the others.
    """
    if meetings.broken or not isinstance(error, Interrupted | DataError | None):
        return
    with suppress(PeerLostError):  # that one tells why
        meetings.exchange("end", [isinstance(error, DataError)])
