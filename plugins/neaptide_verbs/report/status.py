"""The status of a run: how the run ended, derived from its files."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.io.locking import lock
from neaptide_toolkit.pages.text import clean

from .files import number_of, opened, step_of

if TYPE_CHECKING:
    from pathlib import Path

ENDINGS = frozenset({"run.stopped", "run.failed", "run.closed"})
"""Names of the events that state how a run ended."""
_SHOWN = 200
"""Largest number of characters of an error that are shown."""


@attrs.frozen
class Status:
    """The state of a run."""

    kind: str
    """`finished`, `closed`, `running`, `stopped`, `failed`, `diverged`, `interrupted` or
    `not started`."""
    text: str
    """The status as a short text."""


def locked(directory: Path) -> bool:
    """Return whether a process trains in the directory. False if the system has no file locks."""
    try:
        with opened(directory / ".lock") as file:
            # The lock is shared, so that a report does not mistake another report for a run.
            lock(file.fileno(), shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def status_of(
    *,
    held: bool,
    last_step: int,
    summary: dict[str, Any] | None,
    ending: dict[str, Any] | None,
    in_a_row: int,
    max_skipped: Any,
) -> Status:
    """Return the status.

    Args:
        held: whether the run directory's lock is held.
        last_step: the last update that has a row, or 0 if there are no rows.
        summary: contents of summary.json; outdated if the run was resumed afterwards.
        ending: the last event whose name is in `ENDINGS`, or None.
        in_a_row: the number of consecutive skipped updates at the end.
        max_skipped: the setting `train.max_skipped`.
    """
    if held:
        return Status("running", "running now")
    steps = step_of(summary.get("steps")) if summary else None
    if steps is not None and steps >= last_step:
        return Status("finished", "finished")
    allowed = number_of(max_skipped)
    if allowed is not None and in_a_row > allowed:
        return Status("diverged", f"diverged: {in_a_row} updates in a row were not finite")
    stopped = step_of(ending.get("step")) if ending else None
    if ending and stopped is not None and stopped >= last_step:
        if ending.get("event") == "run.failed":
            error = clean(ending.get("error", ""), _SHOWN)
            where = f"after update {stopped:,}" if stopped else "before the first update"
            return Status("failed", f"failed {where}: {error}")
        if ending.get("event") == "run.closed":
            return Status("closed", f"closed after update {stopped:,}, by its own training loop")
        name = _signal_name(ending.get("signal"))
        return Status("stopped", f"stopped by {name} after update {stopped:,}")
    if not last_step:
        return Status("not started", "made no update")
    return Status(
        "interrupted", f"ended after update {last_step:,} without a summary: crashed or killed"
    )


def _signal_name(number: Any) -> str:
    with suppress(ValueError, TypeError):
        return signal.Signals(number).name
    return "a signal"
