"""SIGINT, SIGTERM and SIGHUP make a run save and stop; a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import attrs

from neaptide.api.stash import StashKey
from neaptide.errors import NeaptideError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_HANGUP: int = getattr(signal, "SIGHUP", 0)  # Windows has none
_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([_HANGUP] if _HANGUP else [])]
_END = b"\0"  # the byte that ends `_watch`; no signal has this number
_ACTIVE: set[int] = set()  # the write end of the open pipe


class Interrupted(NeaptideError):  # noqa: N818 - no fault: a signal stops a run
    """The run was saved and stopped after a signal; `exit_code` is 128 + the signal's number."""

    def __init__(self, received: int, message: str) -> None:
        super().__init__(message)
        self.received = received
        self.exit_code = 128 + received  # type: ignore[misc]  # the code depends on the signal


@attrs.define(eq=False)
class StopRequest:
    """A signal handler that stores the number of the first signal."""

    heard: int | None = None
    received: int | None = None
    """The signal that `fit` obeys: the first one, if `alone`; else a plugin sets it."""
    alone: bool = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Store the number of the first signal."""
        del frame
        self.heard = self.heard or number
        self.received = self.heard if self.alone else self.received


STOPPING: StashKey[StopRequest] = StashKey("stopping")
"""The key of the StopRequest of `trainer.fit`, set when it begins."""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT, SIGTERM and SIGHUP inside the context.

    A closed terminal sends SIGHUP. If it is ignored, as under `nohup`, it stays ignored.

    A second signal ends the process at once, without a checkpoint, with exit status 128 + the
    number of the signal. Python can install signal handlers only in the main thread, so in other
    threads no signal is caught.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {
        number: signal.signal(number, request)
        for number in _SIGNALS
        if number != _HANGUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        with _leave_at_the_second():
            yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leave_at_the_second() -> Iterator[None]:
    # Python runs a handler only between two bytecodes of the main thread. During a long kernel or
    # a blocked read this may be minutes late, but the signal's number is in this pipe at once.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
    with suppress(RuntimeError):  # no thread can be started: a second signal then changes nothing
        watch.start()
    _ACTIVE.add(writing)
    try:
        yield
    finally:
        _ACTIVE.discard(writing)
        signal.set_wakeup_fd(before)
        os.write(writing, _END)  # a close does not end the read: forked workers have the pipe open
        if watch.ident is not None:
            watch.join()
        os.close(writing)
        os.close(reading)


def _watch(reading: int) -> None:
    seen = 0
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number == _END[0]:
                return
            if number in _SIGNALS and not (seen and number == _HANGUP):
                seen += 1  # a shell and the system both send SIGHUP when a terminal is closed
            if seen > 1:
                os._exit(128 + number)


def _forget_in_child() -> None:
    # A terminal also sends Ctrl-C to forked workers, so the pipe would get the signal twice.
    if _ACTIVE:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_forget_in_child)
