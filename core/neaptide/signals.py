"""SIGINT and SIGTERM ask the run to save and stop; a second one leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import NeaptideError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(NeaptideError):  # noqa: N818 - not a fault: the run was asked to stop, and saved
    """The run stopped at a signal after saving; `exit_code` is 128 + the signal's number."""

    def __init__(self, received: int, message: str) -> None:
        super().__init__(message)
        self.received = received
        self.exit_code = 128 + received  # type: ignore[misc]  # this error's code is the signal's


class StopRequest:
    """Whether a signal has arrived."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; the second one ends the process without saving."""
        del frame
        if self.received is not None:
            os._exit(128 + number)
        self.received = number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM meanwhile and put the handlers back afterwards.

    Outside the main thread Python cannot install handlers: then nothing is caught.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
