"""Work at the end of a context that does not replace the error of the context."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def ended_by(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` at the end.

    An error inside is the one that is raised. An error of `action` is then a note on it.
    """
    try:
        yield
    except BaseException as error:
        try:
            action()
        except Exception as second:  # noqa: BLE001 - the first error says what went wrong
            error.add_note(f"after this error, layer-streaming: {second}")
        raise
    action()
