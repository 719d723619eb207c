"""What plugins raise while a run ends, told without hiding what ended it."""

from __future__ import annotations


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
