"""Lanes on the host: a thread that copies, or the thread of the caller."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from neaptide.devices import api_of
from neaptide.text import called

from .tickets import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from .tickets import Listener, Ticket


class _Submitted:
    def __init__(self, future: Future[None]) -> None:
        self._future = future
        self.awaited = False

    def wait(self) -> None:
        self.finish()

    def finish(self) -> None:
        self.awaited = True
        self._future.result()


class ThreadLane:
    """A lane on the host: one thread runs the copies in the order of their submission.

    Args:
        name: of the thread.
        listener: called after each copy.
        device: copies to and from this device are made on a stream, for which the thread waits;
            None if all tensors are on the CPU.
    """

    def __init__(
        self, name: str, listener: Listener | None = None, device: torch.device | None = None
    ) -> None:
        self._name, self._listener = name, listener
        self._stream = None if device is None else api_of(device).Stream(device)
        self._device = device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"neaptide-{name}")
        self._last: _Submitted | None = None

    def __repr__(self) -> str:
        return called(self, repr(self._name))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Queue `work`; see `Lane.submit`."""
        tickets = [ticket for ticket in after if ticket is not None]
        # `work` is removed from the list, so its memory is freed before the ticket is done.
        waiting = [work]

        def run() -> None:
            for ticket in tickets:
                ticket.finish()
            start = time.perf_counter()
            with torch.no_grad():
                self._run(waiting.pop())
            if self._listener is not None:
                self._listener(self._name, what, start, time.perf_counter())

        self._last = _Submitted(self._pool.submit(run))
        return self._last

    def _run(self, work: Callable[[], None]) -> None:
        if self._device is None or self._stream is None:
            work()
            return
        with api_of(self._device).stream(self._stream):
            work()
        self._stream.synchronize()

    def hold(self, tensor: torch.Tensor) -> None:
        """Do nothing: queued work holds references to its tensors."""

    def close(self) -> None:
        """Wait for the queue. Raises the error of the last work if nobody has waited for it."""
        self._pool.shutdown()
        if self._last is not None and not self._last.awaited:
            self._last.finish()


class _Failed:
    def __init__(self, error: Exception) -> None:
        self._error = error
        self.awaited = False

    def wait(self) -> None:
        self.finish()

    def finish(self) -> None:
        self.awaited = True
        raise self._error


class DirectLane:
    """A lane on the host without a queue: `submit` copies. `listener` is called after each copy."""

    def __init__(self, name: str, listener: Listener | None = None) -> None:
        self._name, self._listener = name, listener
        self._failed: _Failed | None = None

    def __repr__(self) -> str:
        return called(self, repr(self._name))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Run `work`; see `Lane.submit`. The ticket raises the work's error, as another lane's."""
        start = time.perf_counter()
        try:
            for ticket in after:
                if ticket is not None:
                    ticket.finish()
            _without_graph(work)
        except Exception as error:  # noqa: BLE001 - raised when somebody waits
            self._failed = _Failed(error)
            return self._failed
        except BaseException:
            _without_graph(work)  # who goes on after Ctrl-C finds a whole copy
            raise
        if self._listener is not None:
            self._listener(self._name, what, start, time.perf_counter())
        return DONE

    def hold(self, tensor: torch.Tensor) -> None:
        """Do nothing: the work is done."""

    def close(self) -> None:
        """Raise the error of the last work that failed if nobody has waited for it."""
        if self._failed is not None and not self._failed.awaited:
            self._failed.finish()


def _without_graph(work: Callable[[], None]) -> None:
    """Run `work`. In a backward there is no graph anyway, and the context takes long."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            work()
    else:
        work()
