"""The end of a run: how it is told, and what plugins raise, without hiding what ended it."""

from __future__ import annotations

from typing import Any

from neaptide.io.logging import said

from .signals import Interrupted


def log_end(log: Any, step: int, error: BaseException | None, *, closed: bool) -> None:
    """Write the event of a run that failed, or was closed; whoever saw a signal told of it."""
    if error is None:
        if closed:
            log.info("run.closed", step=step)
    elif not isinstance(error, Interrupted):
        log.info("run.failed", step=step, error=said(error))


def raise_teardown(errors: list[BaseException], error: BaseException | None) -> None:
    """Raise what went wrong at the end of a run, or note it on the error that ended the run."""
    if not errors:
        return
    msg = "plugins failed while the run ended"
    interrupts = [one for one in errors if not isinstance(one, Exception)]
    if interrupts:  # a Ctrl-C, say, is not to be hidden in a group
        interrupts[0].add_note(f"{msg}: {errors}")
        raise interrupts[0]
    if error is None:
        raise BaseExceptionGroup(msg, errors)
    error.add_note(f"{msg}: {tuple(errors)}")
