"""Lanes: queues of copies that run in parallel with the computation.

A lane is a stream of the device or, for CPU tensors, a thread. `submit` returns a ticket, the
handle of the submitted copy. Later computation and copies can wait for the ticket on the device.
The host waits only if it must read the data. Callers use the same code for a device and for the
CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neaptide.devices import api_of, has_streams
from neaptide.text import called
from neaptide_toolkit.machine.devices import lacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

Listener = Callable[[str, str, float, float], None]
"""`listener(lane, what, start, end)`; `start` and `end` are values of `time.perf_counter`, in
seconds."""


class Ticket(Protocol):
    """A handle of submitted work."""

    def wait(self) -> None:
        """Make all computation issued after this call wait until the ticket's work is done."""

    def finish(self) -> None:
        """Block the host until the ticket's work is done; raise the work's error, if any."""


class Copies(Protocol):
    """Runs copies in the order in which they were submitted."""

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Run `work` after the tickets in `after`; `what` is the work's name in a timeline."""

    def close(self) -> None:
        """Finish the submitted work and end the lane's thread, if it has one."""


class Lane(Copies, Protocol):
    """Runs copies of tensors whose memory may be freed before the copies are done."""

    def hold(self, tensor: torch.Tensor) -> None:
        """Prevent reuse of a tensor's memory until the work submitted so far is done."""


class Done:
    """A ticket of finished work."""

    def __repr__(self) -> str:
        return called(self)

    def wait(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Return at once."""


DONE = Done()


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


class _Recorded:
    def __init__(self, event: Any, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        # Use the lane's device, because the current device may be another device.
        api_of(self._device).current_stream(self._device).wait_event(self._event)

    def finish(self) -> None:
        self._event.synchronize()


class StreamLane:
    """A lane on a device: one stream. On CUDA, copies from pageable memory block the host."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._api = device, api_of(device)
        self._stream = self._api.Stream(device)

    def __repr__(self) -> str:
        return called(self, str(self._device))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Enqueue `work` on the stream; see `Lane.submit`."""
        with self._api.stream(self._stream), torch.profiler.record_function(what):
            for ticket in after:
                if ticket is not None:
                    ticket.wait()
            with torch.no_grad():
                work()
            event = self._api.Event()
            event.record(self._stream)
        return _Recorded(event, self._device)

    def hold(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that the stream uses the tensor."""
        tensor.record_stream(self._stream)

    def close(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


_other: ContextVar[Callable[[str], Lane] | None] = ContextVar("lanes", default=None)


@contextmanager
def lanes_by(make: Callable[[str], Lane]) -> Iterator[None]:
    """Within this context, `lane_for` returns `make(name)`."""
    token = _other.set(make)
    try:
        yield
    finally:
        _other.reset(token)


def lane_for(
    device: torch.device, name: str, listener: Listener | None = None, *, waits: bool = False
) -> Lane:
    """Return a lane for copies to or from `device`; raise ValueError for one without streams.

    With `waits`, the host has to wait during the copies, as for a disk: they run on a thread.
    """
    other = _other.get()
    if other is not None:
        return other(name)
    if device.type == "cpu":
        return ThreadLane(name, listener)
    reason = lacks(device, "streams")
    if reason is not None:
        raise ValueError(reason)
    return ThreadLane(name, listener, device) if waits else StreamLane(device)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which `device`, if it has streams, is the current device."""
    context: AbstractContextManager[object] = nullcontext()
    return api_of(device).device(device) if has_streams(device) else context


def computed(device: torch.device) -> Ticket:
    """Return a ticket for all computation issued on `device` so far."""
    if not has_streams(device):
        return DONE
    event = api_of(device).Event()
    event.record(api_of(device).current_stream(device))
    return _Recorded(event, device)
